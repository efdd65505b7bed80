"""Where layerwise optimizers depart from Optax on purpose, asserted on both sides."""

import jax
import jax.numpy as jnp
import optax
import pytest

import eqopt

from .steps import finite, updates_of


pytestmark = pytest.mark.usefixtures("standard_promotion")


def test_adafactor_with_an_offset():
    """Until the offset is reached, each step is like the first one."""
    grads = [jnp.array([1.0, -2.0]), jnp.array([3.0, 1.0])]
    ours = updates_of(eqopt.Adafactor(0.1, decay_offset=3), grads, grads[0])
    assert finite(ours)
    first, *_ = updates_of(eqopt.Adafactor(0.1), grads[1:], grads[0])
    assert jnp.allclose(ours[1], first)
    assert not finite(updates_of(optax.adafactor(0.1, decay_offset=3), grads, grads[0]))


def test_adafactor_keeps_statistics_in_float32():
    """In bfloat16, a mean with decay 1 - t^-0.8 stops moving."""
    params = jnp.ones((128, 128), jnp.bfloat16)
    ours = eqopt.ScaleByFactoredRMS().init(params)
    theirs = optax.scale_by_factored_rms().init(params)
    assert ours.v_row.dtype == ours.v_col.dtype == jnp.float32
    assert theirs.v_row.dtype == theirs.v_col.dtype == jnp.bfloat16
    assert jax.tree.leaves(ours.v) == []
    assert theirs.v.shape == (1,)


def test_the_momentum_of_novograd_in_float32():
    params = jnp.ones(2, jnp.bfloat16)
    make = lambda cls: cls(mu_dtype=jnp.float32)
    assert finite(updates_of(make(eqopt.ScaleByNovoGrad), [params], params))
    with pytest.raises(TypeError, match="cond branches"):
        updates_of(make(optax.scale_by_novograd), [params], params)


def test_large_gradients_in_float16():
    """The square of a norm, or a norm of many elements, overflows in float16."""
    params = jnp.ones(4, jnp.float16)
    grads = [jnp.full(4, 200.0, jnp.float16)]
    ours, theirs = (
        updates_of(opt, grads, params)[0]
        for opt in (eqopt.NovoGrad(1.0), optax.novograd(1.0))
    )
    assert jnp.allclose(ours, -0.5)
    assert not jnp.allclose(theirs, -0.5)


def test_a_small_learning_rate_of_fromage_still_contracts():
    """Optax takes 1 / sqrt(1 + eta^2) - 1 as a difference, here of float32."""
    params, zeros = jnp.ones(2), [jnp.zeros(2)]
    schedule = lambda count: 2e-4 + 0.0 * count
    (ours,), (theirs,) = (
        updates_of(opt, zeros, params)
        for opt in (eqopt.Fromage(schedule), optax.fromage(schedule))
    )
    assert jnp.allclose(ours, -2e-8, rtol=1e-5, atol=0)
    assert not theirs.any()
