"""Step sizes computed from the loss, compared with calculations by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt


P, G = jnp.array([1.0, -2.0]), jnp.array([3.0, 4.0])


def first_step(opt, value, g=G, p=P):
    return opt.step(g, opt.init(p), p, value=value)


@pytest.mark.parametrize(
    ("arguments", "value", "step_size"),
    [
        ({}, 5.0, 0.2),
        ({}, 50.0, 1.0),
        ({"max_learning_rate": jnp.inf}, 50.0, 2.0),
        ({"f_min": 2.5, "eps": 5.0, "scaling": 0.5}, 5.5, 0.05),
        ({"f_min": 6.0}, 5.0, -0.04),
        ({"f_min": 6.0, "variant": "sps+"}, 5.0, 0.0),
    ],
)
def test_polyak_by_hand(arguments, value, step_size):
    new, _ = first_step(eqopt.PolyakSGD(**arguments), value)
    np.testing.assert_allclose(new, P - step_size * G, 1e-6)


def test_polyak_stays_where_the_gradient_is_zero():
    for arguments in ({}, {"max_learning_rate": jnp.inf}, {"f_min": 9.0}):
        new, _ = first_step(eqopt.PolyakSGD(**arguments), 5.0, g=jnp.zeros(2))
        np.testing.assert_array_equal(new, P)


def reference(adam, grads, values, p, alpha, decay, bound, adapt):
    """The algorithm of the paper, in the order of its reference code."""
    b1, b2, eps = 0.9, 0.999, 1e-8
    m, v, f_bar, gamma, lb, tau = 0 * p, 0 * p, 0.0, 0.0, bound, 0.0
    if not adam:
        m, f_bar, gamma = grads[0], values[0], grads[0] @ p
    for t, (g, value) in enumerate(zip(grads, values, strict=True), 1):
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        f_bar = b1 * f_bar + (1 - b1) * value
        gamma = b1 * gamma + (1 - b1) * g @ p
        rho = 1 - b1**t if adam else 1.0
        D = np.sqrt(v / (1 - b2**t)) + eps if adam else np.ones_like(p)
        norm, dot, shrink = m @ (m / D), m @ p, 1 + alpha * decay
        if adapt:
            cap = shrink * (f_bar - gamma) + dot
            if cap < shrink * rho * lb:
                lb = max(cap / (2 * shrink * rho), bound)
        top = shrink * (f_bar - rho * lb - gamma) + dot
        tau = min(alpha / rho, max(top, 0) / norm)
        if adapt:
            lb = max((f_bar + dot - gamma - tau * norm / 2) / rho, bound)
        p = (p - tau * m / D) / shrink
    return p, tau, lb


@pytest.mark.parametrize("alpha", [0.02, 5.0], ids=["capped", "below the cap"])
@pytest.mark.parametrize("adapt", [False, True], ids=["fixed bound", "adaptive bound"])
@pytest.mark.parametrize("make", [eqopt.MoMo, eqopt.MoMoAdam])
@pytest.mark.costly
def test_momo_is_the_algorithm_of_the_paper(make, adapt, alpha):
    rng = np.random.default_rng(0)
    grads, values = rng.normal(size=(8, 5)), rng.uniform(0.1, 2, 8)
    start = rng.normal(size=5)
    opt = make(alpha, weight_decay=0.3, lower_bound=-1.0, adapt_lower_bound=adapt)
    p = jnp.asarray(start, jnp.float32)
    state = opt.init(p)
    for g, value in zip(grads, values, strict=True):
        p, state = opt.step(jnp.asarray(g, jnp.float32), state, p, value=value)
    is_adam = make is eqopt.MoMoAdam
    expected, tau, lb = reference(
        is_adam, grads, values, start, alpha, 0.3, -1.0, adapt
    )
    np.testing.assert_allclose(p, expected, 2e-4, 1e-5)
    np.testing.assert_allclose(state.lb, lb, 2e-4)
    np.testing.assert_allclose(eqopt.tree.get(state, "learning_rate"), tau, 2e-4)


def test_momo_of_masks():
    """Masks that select no parameter for decay, or all of them."""
    p, g = {"a": P, "b": 2 * P}, {"a": G, "b": -G}
    for decay, flag in ((0.0, False), (0.5, True)):
        opt = eqopt.MoMo(0.3, weight_decay=0.5, mask={"a": flag, "b": flag})
        masked = first_step(opt, 2.0, g, p)
        plain = first_step(eqopt.MoMo(0.3, weight_decay=decay), 2.0, g, p)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, 1e-6), masked, plain)


def test_momo_of_complex_parameters():
    """As if real and imaginary parts were separate parameters."""
    p, g = jnp.array([1 + 2j]), jnp.array([3 - 4j])
    split = lambda z: jnp.concatenate([z.real, z.imag])
    new, _ = first_step(eqopt.MoMo(10.0), 5.0, g, p)
    expected, _ = first_step(eqopt.MoMo(10.0), 5.0, split(g), split(p))
    np.testing.assert_allclose(split(new), expected, 1e-6)
