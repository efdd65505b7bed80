"""Optimizers, beyond the laws and the comparison with Optax."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt


def test_weight_decay_is_not_lost_in_bfloat16():
    """It is added to the update in float32, and the sum is rounded once."""
    params = jnp.full(1, 1.0, jnp.bfloat16)
    opt = eqopt.AdamW(2.0**-8, b1=0.0, b2=0.0, eps=0.0, weight_decay=0.75)
    # 1 - 2^-8 (1 + 0.75): only both terms together reach two units in the last place.
    new, _ = opt.step(jnp.ones(1, jnp.bfloat16), opt.init(params), params)
    assert new == jnp.asarray(1 - 1.75 * 2.0**-8, jnp.bfloat16)


def test_learning_rates_by_tree_at():
    """`tree_at` edits the recipe, and the chain follows."""
    opt = eqopt.Adam(0.1)
    faster = eqx.tree_at(lambda o: o.learning_rate, opt, 0.2)
    grads = jnp.ones(2)
    once, _ = opt.update(grads, opt.init(grads))
    twice, _ = faster.update(grads, faster.init(grads))
    np.testing.assert_allclose(twice, 2 * once)


def test_momentum_decay_needs_nesterov():
    with pytest.raises(ValueError, match=r"NAdam .*: `momentum_decay` needs `nest"):
        eqopt.NAdam(0.1, nesterov=False, momentum_decay=0.004)
