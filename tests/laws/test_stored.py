"""The laws for storage in fewer bytes: every row, with its state or parameters stored.

One test covers all laws, which look at one short training, because each row has more
than enough tests already. Blocks are small here, so that each array has several of
them, and an incomplete one at its end.
"""

import dataclasses
import io

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import eqopt
from eqopt._trees.stored import has_stored, put_back
from eqopt.testing._check import check
from eqopt.testing._trial import Trial

from ..methods import METHODS
from .registry import KINDS, law
from .row import Row
from .subjects import (
    all_finite,
    arrays,
    assert_close,
    assert_equal,
    avals,
    grads_of,
    params_of,
    step,
    trail,
)


# One row of each kind: by leaf, by matrix, with its own tree, and with several parts.
QUICK = {"ScaleByAdam", "ScaleByMuon", "ParamEMA(SGD)", "Partition(SGD)"}

# Rows whose state cannot be stored from outside, and the wrapper that prevents it.
NOT_OUTSIDE = {
    "Flatten(nested)": "Flatten",
    "Offload(nested)": "Offload",
    "ZeRO1(nested)": "ZeRO1",
    "all wrappers": "Flatten",
}

# The first row for each optimizer is the usual one.
OPTIMIZERS = {
    next(row.name for row in method.laws if row.subject is method.subject)
    for method in METHODS.values()
}


def stored_state(row: Row) -> Row:
    storage = eqopt.storage.BlockwiseQuantized(block_size=2)
    make = lambda **data: eqopt.StoreState(
        row(**data), storage, eqopt.groups.everything
    )
    return dataclasses.replace(row, make=make)


SPLIT, WHOLE = eqopt.storage.SplitMasterWeights(), eqopt.storage.MasterWeights()


def stored_params(row: Row, storage=SPLIT) -> Row:
    make = lambda **data: eqopt.StoreParams(row(**data), storage)
    return dataclasses.replace(row, make=make)


def check_laws(row: Row, params, moments, grad_dtype):
    opt, (first, *later) = row(), moments
    before = avals(first.state)
    # 2, 7: one type of state, also if `init` gets only shapes.
    assert avals(eqx.filter_eval_shape(opt.init, params)) == before
    for i, now in enumerate(later):
        updates, state = now.updated
        assert avals(updates) == avals(grads_of(params, i, grad_dtype))  # 1
        assert avals(now.params) == avals(params)
        assert avals(state) == avals(now.state) == before
        assert all_finite(updates)
        together = eqopt.apply_updates(moments[i].params, updates)
        assert_close(now.params, together, 1e-5, 1e-6)
    assert later[-1].traces <= first.traces + 1
    last = later[-1]
    assert avals(opt.eval_params(last.state, last.params)) == avals(params)
    # 3: a population, and derivatives.
    jax.eval_shape(jax.grad(lambda data: loss_after(row(**data), params)), row.data)
    many = jax.tree.map(lambda x: jnp.stack([x, x]), params)
    members = eqx.filter_eval_shape(eqx.filter_vmap(opt.init), many)
    assert len(arrays_of(members)) == len(arrays_of(first.state))
    # 7: everything can be donated.
    buffers = [x.unsafe_buffer_pointer() for x in arrays((first.state, params))]
    assert len(set(buffers)) == len(buffers)
    # 8: reading returns what was written.
    file = io.BytesIO()
    eqx.tree_serialise_leaves(file, last.state)
    file.seek(0)
    read = eqx.tree_deserialise_leaves(file, first.state)
    assert_equal(put_back(read), last.state)


def loss_after(opt, params):
    new, _ = opt.step(grads_of(params, 0), opt.init(params), params)
    return sum(jnp.sum(x.real.astype(jnp.float32) ** 2) for x in jax.tree.leaves(new))


def arrays_of(tree):
    return [x for x in jax.tree.leaves(tree) if hasattr(x, "dtype")]


@law(QUICK)
@pytest.mark.costly
def test_stored_state(row):
    row = stored_state(row)
    params = params_of()
    if row.name in NOT_OUTSIDE:
        with pytest.raises(ValueError, match=f"Put `{NOT_OUTSIDE[row.name]}` outside"):
            row().init(params)
        return
    if has_stored(row().init(params)):  # otherwise, it is the same as the plain row
        check_laws(row, params, trail(row, steps=2), None)


STORAGES = {
    "8 bits": eqopt.storage.BlockwiseQuantized(),
    "4 bits": eqopt.storage.BlockwiseQuantized(4),
    "float8": eqopt.storage.Float8(),
    "bfloat16": eqopt.storage.Cast(),
    "at random": eqopt.storage.StochasticRounding(),
}


@pytest.mark.parametrize(
    "inner", [eqopt.Adam(0.01), eqopt.Adagrad(0.1)], ids=["Adam", "Adagrad"]
)
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.usefixtures("uncompiled")
@pytest.mark.costly
def test_huge_and_tiny_gradients_of_every_storage(storage, inner):
    """One square that overflows does not make the whole block NaN."""
    opt = eqopt.StoreState(inner, STORAGES[storage], eqopt.groups.everything)
    check(Trial(opt, params_of()), ["huge_and_tiny_gradients"])


@law(QUICK, {*KINDS, *QUICK})
@pytest.mark.costly
def test_stored_parameters(row):
    """The parameters follow training in float32, bit for bit."""
    plain_row, row = row, stored_params(row)
    half = params_of(jnp.bfloat16)
    moments = trail(row, jnp.bfloat16, jnp.float32, steps=2)
    check_laws(row, half, moments, jnp.float32)
    is_long = row.name in OPTIMIZERS
    opts = [row(), *[stored_params(plain_row, WHOLE)()] * is_long]
    full = eqopt.tree.cast(half, jnp.float32)
    plain = plain_row()
    state = plain.init(full)
    stored = [(half, opt.init(half)) for opt in opts]
    for i in range(10 if is_long else 3):
        grads = grads_of(half, i, jnp.float32)
        full, state = step(plain, grads, state, full)
        stored = [
            step(opt, grads, of_opt, params)
            for opt, (params, of_opt) in zip(opts, stored, strict=True)
        ]
    evaluated = eqopt.tree.cast(plain.eval_params(state, full), jnp.bfloat16)
    for opt, (params, of_opt) in zip(opts, stored, strict=True):
        # The split breaks ties in the other direction.
        assert_close(opt.eval_params(of_opt, params), evaluated, 2**-7, 0)
        assert_equal(opt.full_params(of_opt, params), full)
        assert_equal(of_opt.inner_state, state)
