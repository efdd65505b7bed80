"""MARS, beyond the laws and the formulas in NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt

from ...interpreter import interpreted
from ...methods.matrix.mars import mars, mars_by_hand, uphill
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


@pytest.mark.slow
@pytest.mark.parametrize("mars_type", ["adamw", "lion", "shampoo"])
def test_exact_by_hand(mars_type, x64):
    grads, previous = np.random.default_rng(0).normal(size=(2, 30, 4, 3))
    with x64():
        opt = uphill(mars_type, is_approx=False)
        state, update = opt.init(jnp.zeros((4, 3))), jax.jit(opt.update)
        expected = mars_by_hand(grads, mars_type, previous)
        for g, last, u in zip(grads, previous, expected, strict=True):
            g, last = jnp.asarray(g), jnp.asarray(last)
            found, state = update(g, state, jnp.zeros((4, 3)), previous_grad=last)
            np.testing.assert_allclose(found, u, rtol=1e-9, atol=1e-11)


# The directions for vectors, by the type and by `optimize_1d`.
of_fallback = functools.partial(adam_by_hand, b1=0.9, b2=0.95)
VECTORS = {
    ("adamw", False): of_fallback,
    ("lion", False): of_fallback,
    ("shampoo", False): of_fallback,
    ("adamw", True): functools.partial(mars_by_hand, mars_type="adamw"),
    ("lion", True): functools.partial(mars_by_hand, mars_type="lion"),
    ("shampoo", True): functools.partial(mars_by_hand, mars_type="adamw"),
}


@pytest.mark.parametrize(("mars_type", "optimize_1d"), VECTORS)
@pytest.mark.costly
def test_with_decay_by_hand(mars_type, optimize_1d, x64):
    rng = np.random.default_rng(0)
    grads = {"w": rng.normal(size=(30, 4, 3)), "b": 3 * rng.normal(size=(30, 5))}
    expected = jax.tree.map(lambda g: g[0], grads)
    directions = {
        "w": mars_by_hand(grads["w"], mars_type),
        "b": VECTORS[mars_type, optimize_1d](grads["b"]),
    }
    opt = mars(
        0.1,
        mars_type,
        weight_decay=0.3,
        optimize_1d=optimize_1d,
        weight_dimension_numbers={"w": NUMBERS, "b": None},
    )
    with x64():
        params = jax.tree.map(jnp.asarray, expected)
        state, step = opt.init(params), interpreted(lambda *args: opt.step(*args))
        for i in range(30):
            now = {k: jnp.asarray(g[i]) for k, g in grads.items()}
            params, state = step(now, state, params)
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
