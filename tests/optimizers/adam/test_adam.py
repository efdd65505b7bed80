"""Adam and its variants, beyond the laws and the comparison with Optax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt


@pytest.mark.parametrize("b2", [0.0, 0.6, 0.7, 0.99, 0.999])
def test_rectifier(b2):
    """Float32 agrees with float64 at any number of steps."""
    for t in (1, 4, 5, 6, 7, 30, 1000, 1001, 10**6, 2**31 - 2):
        opt = eqopt.ScaleByRAdam(b1=0.0, b2=b2, eps=0.0, threshold=4.5)
        # With a constant gradient of one, both moments are one, and only the factor
        # remains.
        state = opt.init(jnp.ones(1))
        filled = jnp.full(1, 1 - b2 ** (t - 1), jnp.float32)
        state = type(state)(jnp.asarray(t - 1, jnp.int32), state.mu, filled)
        updates, _ = opt.update(jnp.ones(1), state)
        rho_inf = 2 / (1 - b2) - 1
        rho = rho_inf - 2 * t * b2**t / (1 - b2**t)
        over = (rho_inf - 4) * (rho_inf - 2) * rho
        expected = 1
        if rho >= 4.5:
            expected = np.sqrt((rho - 4) * (rho - 2) * rho_inf / over)
        np.testing.assert_allclose(updates, expected, rtol=5e-5)


@pytest.mark.parametrize("cls", [eqopt.ScaleByRAdam, eqopt.ScaleByACProp])
@pytest.mark.slow
def test_derivatives_while_it_divides(cls):
    """Also if the second moment is zero, and after more steps than the laws take."""

    def after(b1, b2, eps, scale):
        opt = cls(b1, b2, eps, eps_root=0.0)
        start = opt.init(jnp.zeros(2))
        state = type(start)(jnp.asarray(100, jnp.int32), start.mu, start.nu)
        total = 0.0
        for _ in range(2):
            updates, state = opt.update(scale * jnp.array([0.0, 1.0]), state)
            total += updates.sum()
        return total

    for scale in (1.0, 0.0):
        slopes = jax.grad(after, argnums=(0, 1, 2, 3))(0.9, 0.999, 1e-8, scale)
        assert all(jnp.isfinite(slope) for slope in slopes)


@pytest.mark.parametrize(
    "cls",
    [
        eqopt.ScaleByAdamax,
        eqopt.ScaleByAMSGrad,
        eqopt.ScaleByYogi,
        eqopt.ScaleByRAdam,
        eqopt.ScaleByBelief,
        eqopt.ScaleByACProp,
    ],
)
@pytest.mark.costly
def test_rotated_complex_gradients_give_rotated_updates(cls):
    """A gradient in any complex direction is treated as one on the real axis."""
    turn = np.exp(np.complex64(0.7j))
    opt = cls(b2=0.9)
    real, turned = opt.init(jnp.ones(3)), opt.init(jnp.ones(3, jnp.complex64))
    assert turned.nu.dtype == jnp.float32
    for i in range(8):
        g = jax.random.normal(jax.random.key(i), (3,))
        u, real = opt.update(g, real)
        v, turned = opt.update(g.astype(jnp.complex64) * turn, turned)
        np.testing.assert_allclose(v, np.asarray(u) * turn, rtol=1e-4, atol=1e-5)
