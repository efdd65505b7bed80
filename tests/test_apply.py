import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqopt


@pytest.fixture
def models():
    return [eqx.nn.MLP(2, 2, 2, 1, key=jr.key(i)) for i in range(2)]


def test_apply_updates_keeps_the_rest(models):
    model, other = models
    updates = eqx.filter(other, eqx.is_inexact_array)
    new = eqopt.apply_updates(model, updates)
    assert new.activation is model.activation
    np.testing.assert_allclose(
        new.layers[0].weight, model.layers[0].weight + other.layers[0].weight
    )


def test_a_step_rounds_once():
    """The update is not rounded to the gradient's dtype before it is added."""
    grads, params = (jr.normal(jr.key(i), (64,), jnp.bfloat16) for i in range(2))
    opt = eqopt.Scale(-1 / 3)
    new, _ = opt.step(grads, opt.init(params), params)
    wide = params.astype(jnp.float32) - grads.astype(jnp.float32) / 3
    np.testing.assert_array_equal(new, wide.astype(jnp.bfloat16))


def test_apply_updates_adds_in_float32():
    """2^-9 is lost on 1 in bfloat16, so three of them in one float32 update are not."""
    params = jnp.ones(1, jnp.bfloat16)
    new = eqopt.apply_updates(params, jnp.full(1, 3 * 2.0**-9))
    assert new.dtype == jnp.bfloat16
    assert new == 1 + 2.0**-7


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4])
def test_periodic_update(models, steps):
    new, old = models
    chosen = eqx.filter_jit(eqopt.periodic_update)(new, old, jnp.asarray(steps), 2)
    assert bool(eqx.tree_equal(chosen, new if steps % 2 == 0 else old))


def test_safe_sqrt():
    x = jnp.array([0.0, 4.0, jnp.nan])
    np.testing.assert_allclose(eqopt.numerics.safe_sqrt(x), [0, 2, jnp.nan])
    assert jax.grad(eqopt.numerics.safe_sqrt)(0.0) == 0
    assert jax.grad(eqopt.numerics.safe_sqrt)(4.0) == 0.25
    twice = jax.jit(jax.vmap(jax.grad(jax.grad(eqopt.numerics.safe_sqrt))))
    np.testing.assert_allclose(twice(jnp.array([0.0, 4.0])), [0, -1 / 32])


def test_abs_sq():
    assert eqopt.numerics.abs_sq(jnp.array(3 + 4j, jnp.complex64)) == 25
    assert eqopt.numerics.abs_sq(jnp.array(-3.0)) == 9


def test_periodic_update_can_be_donated_with_the_new_tensors():
    new, old = jnp.ones(3), jnp.zeros(3)
    chosen = eqopt.periodic_update(new, old, 0, 2)
    assert chosen.unsafe_buffer_pointer() != new.unsafe_buffer_pointer()
