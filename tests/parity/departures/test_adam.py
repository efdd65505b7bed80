"""Where variants of Adam depart from Optax on purpose, asserted on both sides."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import eqopt

from .steps import updates_of


pytestmark = pytest.mark.usefixtures("standard_promotion")


def test_yogi_stands_still_without_gradients():
    zeros = [jnp.zeros(2)] * 3
    assert not any(u.any() for u in updates_of(eqopt.Yogi(0.1), zeros))
    assert all(u.all() for u in updates_of(optax.yogi(0.1), zeros))


def test_acprop_does_not_explode():
    """On the Rosenbrock function, one of whose first gradients is zero."""

    def rosenbrock(params):
        x, y = params
        return (1 - x) ** 2 + 100 * (y - x**2) ** 2

    def largest(opt):
        def body(carry, _):
            params, state = carry
            value, grads = jax.value_and_grad(rosenbrock)(params)
            updates, state = opt.update(grads, state, params)
            return (params + updates, state), value

        start = jnp.zeros(2)
        return jax.lax.scan(body, (start, opt.init(start)), length=300)[1].max()

    assert largest(eqopt.ACProp(1e-4)) == 1  # where it starts
    assert largest(optax.contrib.acprop(1e-4)) > 1000


def test_acprop_is_about_the_new_mean():
    """So its second step is longer by 1 / b1."""
    grads = [jnp.ones(1), jnp.ones(1)]
    ours = updates_of(eqopt.ScaleByACProp(0.5, rectify=False), grads)
    theirs = updates_of(optax.contrib.scale_by_acprop(0.5), grads)
    np.testing.assert_allclose(ours[0], theirs[0])
    np.testing.assert_allclose(ours[1], 2 * theirs[1], rtol=1e-5)


def test_slow_moments_of_bfloat16_parameters():
    """They are in float32. In bfloat16, where Optax has them, they stand still."""

    @functools.partial(jax.jit, static_argnums=0)
    def after(opt):
        def one(state, i):
            g = jnp.where(i == 0, 1, 2).astype(jnp.bfloat16)
            return opt.update(g, state, g)[1], None

        start = opt.init(jnp.ones((), jnp.bfloat16))
        return jax.lax.scan(one, start, jnp.arange(3000))[0]

    ours, theirs = after(eqopt.ScaleByAdam()), after(optax.scale_by_adam())
    assert (ours.nu.dtype, theirs.nu.dtype) == (jnp.float32, jnp.bfloat16)
    np.testing.assert_allclose(ours.nu, 3.80, rtol=1e-3)
    assert theirs.nu == 2
    assert after(eqopt.ScaleByAdam(nu_dtype=jnp.bfloat16)).nu == 1


def test_bfloat16_moments_are_rounded_once():
    """Optax multiplies them by `b1` in bfloat16, in which 0.9 is 0.8984."""
    grads = [jnp.full(1, 10.0), jnp.zeros(1)]  # the moment is 1, then 0.9
    exact, theirs, ours = (
        updates_of(opt, grads)[1]
        for opt in (
            optax.scale_by_adam(),
            optax.scale_by_adam(mu_dtype=jnp.bfloat16),
            eqopt.ScaleByAdam(mu_dtype=jnp.bfloat16),
        )
    )
    np.testing.assert_allclose(ours, exact, rtol=1e-5)
    np.testing.assert_allclose(theirs, exact * 0.8984375 / 0.9, rtol=1e-5)


def test_the_step_after_a_converted_state_of_adan():
    """The state is Optax's, and the weights of its second moment are not."""
    from eqopt.interop.optax import state_from_optax

    params = {"w": jnp.asarray([1.0, -2.0])}
    grads = [{"w": jnp.asarray(g)} for g in ([1.0, 2.0], [-1.0, 0.5], [0.3, 0.2])]
    tx, opt = optax.adan(0.1, eps_root=0.0), eqopt.Adan(0.1)
    theirs = tx.init(params)
    for g in grads[:2]:
        _, theirs = tx.update(g, theirs, params)
    ours = state_from_optax(opt, theirs, params)
    u, _ = tx.update(grads[2], theirs, params)
    v, _ = opt.update(grads[2], ours, params)
    assert not jnp.allclose(u["w"], v["w"], rtol=1e-2)


def test_adan_weighs_differences_with_b2():
    """By hand, with b1 = b3 = 0: g = 1, then 3, so the difference is 2."""
    b2, params = 0.9, jnp.ones(1)
    grads = [jnp.ones(1), jnp.full(1, 3.0)]
    v_hat = (1 - b2) * 2 / (1 - b2**2)
    expected = lambda weight: (3 + weight * v_hat) / (3 + weight * 2)
    ours = updates_of(eqopt.ScaleByAdan(0.0, b2, 0.0), grads, params)
    theirs = updates_of(optax.scale_by_adan(0.0, b2, 0.0), grads, params)
    np.testing.assert_allclose(ours[1], expected(b2), rtol=1e-5)
    np.testing.assert_allclose(theirs[1], expected(1 - b2), rtol=1e-5)


def test_adans_decay_is_proximal():
    params, zeros = jnp.ones(1), [jnp.zeros(1)]
    [ours] = updates_of(eqopt.Adan(1.0, weight_decay=4.0), zeros, params)
    [theirs] = updates_of(optax.adan(1.0, weight_decay=4.0), zeros, params)
    np.testing.assert_allclose(1 + ours, 1 / 5, rtol=1e-5)
    np.testing.assert_allclose(1 + theirs, 1 - 4, rtol=1e-5)


def test_adan_does_not_see_how_small_gradients_are():
    params, grads = jnp.ones(1), [jnp.full(1, 1e-5)]
    [ours] = updates_of(eqopt.Adan(1.0), grads, params)
    [theirs] = updates_of(optax.adan(1.0), grads, params)
    np.testing.assert_allclose(ours, -1, rtol=2e-3)
    assert abs(theirs) < 0.11


@pytest.mark.slow
def test_second_moments_of_complex_parameters():
    """They are means of squared moduli. In Optax, they are means of squares."""
    grads = [jnp.array([1j], jnp.complex64)]
    ours = updates_of(eqopt.ScaleBySimplifiedAdEMAMix(), grads)
    theirs = updates_of(optax.contrib.scale_by_simplified_ademamix(), grads)
    np.testing.assert_allclose(ours, 1j, rtol=1e-5)
    np.testing.assert_allclose(theirs, 1, rtol=1e-5)


def test_adopt_without_a_first_moment_does_not_multiply_by_zero():
    grads = [jnp.array([1e38])]
    ours = eqopt.ScaleByADOPT(use_clipping=False)
    theirs = optax.contrib.scale_by_adopt(use_clipping=False)
    assert updates_of(ours, grads) == [0]
    assert np.isnan(updates_of(theirs, grads)[0])
