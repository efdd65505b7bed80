"""Leaves that are stored in another form stay so; only kernels load them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

import eqopt
from eqopt._core.reductions import sum_over_leaves
from eqopt._trees.stored import AbstractStored, is_stored, load

from .registry import law
from .subjects import grads_of, params_of
from .test_eval_params import WRAPPERS


# One row of each kind: by leaf, by matrix, with its own tree, and with several parts.
# `test_stored` tests the storages of eqopt with all rows.
QUICK = {"ScaleByAdam", "ScaleByMuon", "ParamEMA(SGD)", "Partition(SGD)"}


class Half(AbstractStored):
    """Stores half of each number, which is exact."""

    half: Array

    @property
    def like(self):
        return self.half

    def load(self):
        return self.half + self.half

    def store(self, new):
        return Half((new / 2).astype(self.half.dtype))


def halved(x):
    return Half(x / 2)


def stored_state(opt, params):
    """The state of `opt`, in which each array that stands for a parameter is stored."""
    state = opt.init(params)
    is_float = lambda x: jnp.issubdtype(x.dtype, jnp.floating)
    return eqopt.tree.map_params(
        opt, lambda x: halved(x) if is_float(x) else x, state, params=params
    )


def same(found, expected):
    pairs = zip(*map(jax.tree.leaves, (load(found), expected)), strict=True)
    for x, y in pairs:
        if eqx.is_inexact_array(y):
            np.testing.assert_allclose(x, y, 1e-6, 1e-7)


PARAMS = params_of()
GRADS = jax.tree.map(lambda p: jnp.cos(3 * p), PARAMS)


@law(QUICK, QUICK)
@pytest.mark.costly
def test_stored_state(row):
    opt = row()
    plain, state = opt.init(PARAMS), stored_state(opt, PARAMS)
    for _ in range(2):
        params, plain = opt.step(GRADS, plain, PARAMS)
        found, new = opt.step(GRADS, state, PARAMS)
        same((found, new), (params, plain))
        treedef = jax.tree.structure(new, is_leaf=is_stored)
        assert treedef == jax.tree.structure(state, is_leaf=is_stored)
        state = new


def test_sums_and_maps_see_the_loaded_array():
    total = eqopt.equation(lambda g, x: jnp.vdot(g, x))
    stored = {"a": halved(jnp.arange(3.0)), "b": None}
    updates = {"a": jnp.ones(3), "b": None}
    [found] = sum_over_leaves(total, updates, {"x": stored})
    assert found == 3
    opt = eqopt.Adam(0.1)
    state = stored_state(opt, PARAMS)
    shapes = eqopt.tree.map_params(opt, lambda x: x.shape, state, params=PARAMS)
    assert shapes[0].mu["matrix"] == PARAMS["matrix"].shape


# What changes parameters, or updates, beyond what its inner transformation does.
MOVING = {
    *("Cautious", "ConditionallyTransform", "DiLoCo", "EMANesterov", "GPA"),
    *("Lookahead", "Mechanic", "OuterNesterov", "Project", "ScheduleFree", "SODA"),
}


@pytest.mark.parametrize("call", ["step", "update"])
@pytest.mark.parametrize("name", WRAPPERS)
@pytest.mark.costly
def test_both_parts_of_parameters_move_together(name, call):
    """Or the wrapper refuses a `StoreParams` inside, and is right with one outside."""
    make = WRAPPERS[name]
    store = lambda opt: eqopt.StoreParams(opt, eqopt.storage.MasterWeights())
    opt, params = make(store(eqopt.SGD(0.1))), params_of(jnp.bfloat16)
    if name in MOVING:
        with pytest.raises(ValueError, match=r"`StoreParams` outside: `eqopt.Store"):
            opt.init(params)
        opt = store(make(eqopt.SGD(0.1)))
    state = opt.init(params)
    run = eqx.filter_jit(getattr(opt, call))
    for i in range(4):
        out, state = run(grads_of(params, i, jnp.float32), state, params)
        params = out if call == "step" else eqopt.apply_updates(params, out)
        if name != "SAM" or i % 2:  # between, parameters are adversarial
            full = eqopt.tree.cast(opt.full_params(state, params), jnp.bfloat16)
            same(full, params)


named = lambda first, last: eqopt.NamedChain(first=first, last=last)


@pytest.mark.parametrize("chain", [eqopt.Chain, named])
def test_nothing_follows_stored_parameters(chain):
    stored = eqopt.StoreParams(eqopt.SGD(0.1), eqopt.storage.MasterWeights())
    with pytest.raises(ValueError, match="Chain: `StoreParams` is inside"):
        chain(stored, eqopt.Scale(0.5)).init(params_of(jnp.bfloat16))
    chain(eqopt.Scale(0.5), stored).init(params_of(jnp.bfloat16))


@pytest.mark.parametrize("name", sorted(WRAPPERS.keys() - MOVING))
@pytest.mark.costly
def test_updates_of_half_precision_are_too_coarse_in_every_wrapper(name):
    """Some pass wider updates on, but the outermost call rounds its result."""
    stored = eqopt.StoreParams(eqopt.SGD(0.1), eqopt.storage.MasterWeights())
    opt, params = WRAPPERS[name](stored), params_of(jnp.bfloat16)
    state, grads = opt.init(params), grads_of(params, 0, jnp.bfloat16)
    with pytest.raises(TypeError, match="bfloat16, which is too coarse to reach"):
        jax.eval_shape(lambda *args: opt.update(*args)[0], grads, state, params)
    jax.eval_shape(lambda *args: opt.step(*args)[0], grads, state, params)
