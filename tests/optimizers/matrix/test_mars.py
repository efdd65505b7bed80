"""MARS, beyond the laws and the formulas in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt

from ...interpreter import interpreted
from ...methods.matrix.mars import mars, mars_by_hand
from ...parity.by_hand import adam_by_hand
from ...parity.matrices import NUMBERS


PARAMS = {"w": jnp.linspace(-1, 1, 6).reshape(2, 3), "b": jnp.linspace(-1, 1, 3)}
GRADS = jax.tree.map(lambda p: 0.1 * jnp.cos(5 * p), PARAMS)


def assert_equal(ours, theirs):
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6),
        ours,
        theirs,
    )


@pytest.mark.parametrize("is_approx", [True, False])
@pytest.mark.parametrize("mars_type", ["adamw", "lion", "shampoo"])
@pytest.mark.costly
def test_with_decay_by_hand(mars_type, is_approx, x64):
    """Vectors have the fallback, or, here with exact gradients, MARS."""
    rng = np.random.default_rng(0)
    grads = {"w": rng.normal(size=(30, 4, 3)), "b": 3 * rng.normal(size=(30, 5))}
    previous = {k: rng.normal(size=g.shape) for k, g in grads.items()}
    expected = jax.tree.map(lambda g: g[0], grads)
    if is_approx:
        of_vectors = adam_by_hand(grads["b"], b1=0.9, b2=0.95)
    else:
        kind = "adamw" if mars_type == "shampoo" else mars_type
        of_vectors = mars_by_hand(grads["b"], kind, previous["b"])
    before = None if is_approx else previous["w"]
    directions = {"w": mars_by_hand(grads["w"], mars_type, before), "b": of_vectors}
    opt = mars(
        0.1,
        mars_type,
        weight_decay=0.3,
        optimize_1d=not is_approx,
        is_approx=is_approx,
        weight_dimension_numbers={"w": NUMBERS, "b": None},
    )
    with x64():
        params = jax.tree.map(jnp.asarray, expected)
        state = opt.init(params)
        step = interpreted(lambda *args: opt.step(*args[:3], previous_grad=args[3]))
        for i in range(30):
            now, last = (
                {k: jnp.asarray(g[i]) for k, g in x.items()} for x in (grads, previous)
            )
            params, state = step(now, state, params, last)
            for k, p in expected.items():
                expected[k] = p - 0.1 * (next(directions[k]) + 0.3 * p)
                np.testing.assert_allclose(params[k], expected[k], 1e-9, 1e-11)


def of_some(inner):
    """A chain, which is not leafwise, inside a mask."""
    return eqopt.Masked(eqopt.Chain(inner), {"a": True, "b": False})


@pytest.mark.parametrize(
    "wrapper", [eqopt.Flatten, eqopt.SplitRealAndImaginary, of_some]
)
def test_wrappers_transform_the_previous_gradients_as_well(wrapper):
    params = {"a": jnp.array([1 + 2j, 3 - 1j]), "b": jnp.array([[0.5]])}
    previous = jax.tree.map(lambda x: x * (2 - 1j) if x.ndim == 1 else -x, params)
    opt = eqopt.CorrectByMARS(gamma=0.3, b1=0.5, max_norm=None, is_approx=False)
    arguments = {"previous_grad": previous}
    plain, _ = opt.update(params, opt.init(params), params, **arguments)
    opt = wrapper(opt)
    wrapped, _ = opt.update(params, opt.init(params), params, **arguments)
    assert_equal(wrapped["a"], plain["a"])
    assert_equal(wrapped["b"], params["b"] if wrapper is of_some else plain["b"])


def test_missing_and_misshapen_previous_gradients():
    opt = eqopt.MARS(0.1, is_approx=False)
    state = opt.init(PARAMS)
    with pytest.raises(ValueError, match=r"MARS.* `previous_grad` is needed"):
        opt.step(GRADS, state, PARAMS)
    with pytest.raises(ValueError, match="`previous_grad` has another tree structure"):
        opt.step(GRADS, state, PARAMS, previous_grad=GRADS["w"])
    wrong = {**GRADS, "w": jnp.ones((5, 5))}
    with pytest.raises((ValueError, TypeError), match=r"\['w'\]"):
        opt.step(GRADS, state, PARAMS, previous_grad=wrong)
