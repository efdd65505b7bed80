"""Models that are trained in part: gradients are `None` at all other parameters.

Whether `init` got only that part or the whole model, `step`, `update` and `eval_params`
get the whole model, and return it as if the part had been trained alone. All other
parameters, and their part of the state, stay unchanged.
"""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import optax
import pytest

import eqopt
from eqopt.interop.optax import from_optax

from .registry import REGISTRY, law
from .row import Evaluated
from .subjects import assert_equal, grads_of, params_of


STEPS = 2
TREE = {"matrix": True, "more": [True, None, {"scalar": False}]}


def model_of(row):
    """Two equal trees, of which one is trained, and leaves that are not parameters."""
    # The made-up loss of some rows is a norm of all parameters, so these must be zero.
    factor = 0.0 if isinstance(row(), Evaluated) else 1.0
    frozen = jax.tree.map(lambda p: factor * p, params_of(seed=1))
    # Not all leaves, because each shape takes time to compile.
    return {
        "trained": eqx.filter(params_of(), TREE),
        "frozen": eqx.filter(frozen, TREE),
        "count": jnp.arange(3),
        "base": jnp.ones((3, 2), jnp.float8_e4m3fn),  # data, too
        "activation": jnp.tanh,
    }


def part_of(model):
    return {**jax.tree.map(lambda _: None, model), "trained": model["trained"]}


def run(opt, state, model):
    """The results of some steps: parameters, those to evaluate with, and the state."""
    for i in range(STEPS):
        model, state = opt.step(grads_of(part_of(model), i), state, model)
    return model, opt.eval_params(state, model), state


@functools.cache
def alone(name):
    """The same results for the part by itself."""
    (row,) = (row for row in REGISTRY if row.name == name)
    opt, part = row(), part_of(model_of(row))
    return run(opt, opt.init(part), part)


@law()
@pytest.mark.costly
def test_init_of_the_part(row):
    """All later calls get the whole model."""
    opt, model = row(), model_of(row)
    whole = run(opt, opt.init(part_of(model)), model)
    check(row, whole, model)
    assert_equal(whole[2], alone(row.name)[2])


@law()
@pytest.mark.costly
def test_init_of_the_whole(row):
    """Without a gradient, neither a parameter nor its state changes."""
    opt, model = row(), model_of(row)
    state = opt.init(model)
    whole = run(opt, state, model)
    check(row, whole, model)
    first, last, lone = map(by_path, (state, whole[2], alone(row.name)[2]))
    for path, x in last.items():
        np.testing.assert_array_equal(x, lone.get(path, first[path]), err_msg=path)


@law()
@pytest.mark.costly
def test_a_mask_of_the_part(row):
    """With the mask in its equation, or around it, a method sees only the part."""
    model = model_of(row)
    mask = {**dict.fromkeys(model, False), "trained": True}
    opt = eqopt.Masked(row(), lambda _: mask)
    *whole, state = run(opt, opt.init(model), model)
    check(row, whole, model)
    assert_equal(by_path(state.inner_state), by_path(alone(row.name)[2]))


@law()
@pytest.mark.costly
def test_no_gradient_no_change(row):
    """Not even if earlier steps have moved the parameter away from its copies."""
    opt, model = row(), model_of(row)
    start = jax.tree.map(lambda p: p + 1, model["frozen"])
    params, state = model, opt.init({**model, "frozen": start})
    first = by_path(state)
    for i in range(STEPS):
        params, state = opt.step(grads_of(part_of(model), i), state, params)
        assert_equal({**params, "trained": None}, {**model, "trained": None})
    for path, x in by_path(state).items():
        if "frozen" in path:
            np.testing.assert_array_equal(x, first[path], err_msg=path)


def check(row, whole, model):
    for lone, new in zip(alone(row.name)[:2], whole[:2], strict=True):
        assert_equal(new["trained"], lone["trained"])
        assert_equal({**new, "trained": None}, {**model, "trained": None})


def by_path(tree):
    leaves = jtu.tree_leaves_with_path(eqx.filter(tree, eqx.is_array))
    return {jtu.keystr(path): x for path, x in leaves}


MODEL = {"w": jnp.ones(2), "b": jnp.ones(3)}
IS_TRAINED = {"w": True, "b": False}
FROZEN = {"w": False, "b": True}


def leaves_the_bias(opt, state, grads=MODEL):
    model, _ = opt.step(grads, state, MODEL)
    assert (model["w"] < 1).all()
    assert_equal(model["b"], MODEL["b"])


@pytest.mark.parametrize(
    "opt",
    [eqopt.Flatten(eqopt.Adam(0.1)), from_optax(optax.adam(0.1))],
    ids=["Flatten", "from_optax"],
)
def test_advice_for_what_needs_all_gradients(opt):
    grads = eqx.filter(MODEL, IS_TRAINED)
    with pytest.raises(ValueError) as caught:
        opt.step(grads, opt.init(MODEL), MODEL)
    message = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    for advice in (
        "`init(eqx.filter(model, is_trained))`",
        "inside `eqopt.SelectiveTransform(opt, freeze_mask=...)`",
    ):
        assert advice in message
    leaves_the_bias(opt, opt.init(eqx.filter(MODEL, IS_TRAINED)), grads)
    selective = eqopt.SelectiveTransform(opt, freeze_mask=FROZEN)
    leaves_the_bias(selective, selective.init(MODEL))
    leaves_the_bias(selective, selective.init(MODEL), grads)
