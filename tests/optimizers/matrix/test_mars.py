"""MARS, beyond the laws and the formulas in NumPy."""

import functools

import equinox as eqx
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
GRADS = [
    jax.tree.map(lambda p, s=s: 0.1 * jnp.cos(s + 5 * p), PARAMS) for s in range(5)
]
ALL = {"optimize_1d": True}


def last_of(opt, grads=GRADS, params=PARAMS, **extra):
    state = opt.init(params)
    for g in grads:
        params, state = opt.step(g, state, params, **extra)
    return params


def assert_equal(ours, theirs):
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6),
        ours,
        theirs,
    )


@pytest.mark.slow
def test_without_correction_and_clipping_it_is_adamw():
    mars = eqopt.MARS(0.1, gamma=0.0, weight_decay=0.3, **ALL)
    adamw = eqopt.AdamW(0.1, 0.95, 0.99, weight_decay=0.3)
    assert_equal(last_of(mars), last_of(adamw))


@pytest.mark.slow
def test_parameters_that_are_not_matrices_follow_adamw():
    mars = last_of(eqopt.MARS(0.1, weight_decay=0.3))
    assert_equal(mars["b"], last_of(eqopt.AdamW(0.1, b2=0.95, weight_decay=0.3))["b"])
    assert_equal(mars["w"], last_of(eqopt.MARS(0.1, weight_decay=0.3, **ALL))["w"])


@pytest.mark.parametrize("mars_type", ["adamw", "lion", "shampoo"])
def test_the_fallback_trains_only_parameters_that_are_not_matrices(mars_type):
    opt = eqopt.MARS(0.1, mars_type, fallback=eqopt.SGD(0.0))
    np.testing.assert_array_equal(last_of(opt)["b"], PARAMS["b"])
    is_moved = last_of(opt)["w"] != PARAMS["w"]
    assert bool(is_moved.all())


def test_shampoo_of_all_parameters_takes_adamw_for_vectors():
    shampoo, adamw = (
        last_of(eqopt.MARS(0.1, name, weight_decay=0.3, **ALL))
        for name in ("shampoo", "adamw")
    )
    assert_equal(shampoo["b"], adamw["b"])
    assert not np.allclose(shampoo["w"], adamw["w"])


@pytest.mark.slow
def test_each_leaf_is_clipped_by_itself():
    opt = eqopt.CorrectByMARS(gamma=0.0, max_norm=5.0)
    grads = {"large": jnp.array([30.0, 40.0]), "small": jnp.array([3.0])}
    u, state = opt.update(grads, opt.init(grads))
    assert_equal(u, {"large": jnp.array([3.0, 4.0]), "small": jnp.array([3.0])})
    # The state keeps the gradient without clipping.
    assert_equal(state.previous_gradient, grads)
    opt = eqopt.CorrectByMARS(gamma=0.1, b1=0.5, max_norm=None)
    u, _ = opt.update(grads, opt.init(grads))
    assert_equal(u, jax.tree.map(lambda g: 1.1 * g, grads))


@pytest.mark.parametrize("mars_type", ["adamw", "lion", "shampoo"])
@pytest.mark.costly
def test_exact_mode_with_the_last_gradients_equals_approximate_mode(mars_type):
    """It stores no gradient."""
    approximate, exact = (
        eqopt.MARS(0.1, mars_type, gamma=0.3, is_approx=is_approx)
        for is_approx in (True, False)
    )
    params, state = PARAMS, exact.init(PARAMS)
    previous = jax.tree.map(jnp.zeros_like, PARAMS)
    for g in GRADS:
        params, state = exact.step(g, state, params, previous_grad=previous)
        previous = g
    assert_equal(params, last_of(approximate))
    count = lambda opt: len(jax.tree.leaves(opt.init(PARAMS)))
    assert count(approximate) == count(exact) + 1  # the gradient of the only matrix


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
    ("lion", False): of_fallback,
    ("shampoo", False): of_fallback,
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


def test_exact_differences_of_one_batch_have_no_noise():
    """As documented: equal noise at both parameters cancels in the difference."""
    opt = eqopt.CorrectByMARS(gamma=0.5, b1=0.5, max_norm=None, is_approx=False)

    def loss_fn(model, noise):
        return jnp.sum(model["x"] ** 2 / 2 + noise * model["x"])

    @eqx.filter_jit
    def updates(model, previous_model, noise):
        _, grads = eqx.filter_value_and_grad(loss_fn)(model, noise)
        _, previous_grad = eqx.filter_value_and_grad(loss_fn)(previous_model, noise)
        return opt.update(grads, opt.init(model), model, previous_grad=previous_grad)[0]

    model, previous_model = {"x": jnp.array([3.0])}, {"x": jnp.array([1.0])}
    noise = jnp.array([7.0])
    found = updates(model, previous_model, noise)["x"]
    np.testing.assert_allclose(found, 3 + 7 + 0.5 * (3 - 1), rtol=1e-6)
    np.testing.assert_allclose(updates(model, model, noise)["x"], 10.0, rtol=1e-6)


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
        opt.step(GRADS[0], state, PARAMS)
    with pytest.raises(ValueError, match="`previous_grad` has another tree structure"):
        opt.step(GRADS[0], state, PARAMS, previous_grad=GRADS[0]["w"])
    wrong = {**GRADS[0], "w": jnp.ones((5, 5))}
    with pytest.raises((ValueError, TypeError), match=r"\['w'\]"):
        opt.step(GRADS[0], state, PARAMS, previous_grad=wrong)
