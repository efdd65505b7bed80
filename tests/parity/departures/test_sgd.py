"""Where gradient descent departs from Optax on purpose, on both sides."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import eqopt


pytestmark = pytest.mark.usefixtures("standard_promotion")


def updates_of(opt, grads_in_turn, params):
    state, seen = opt.init(params), []
    for grads in grads_in_turn:
        updates, state = opt.update(grads, state, params)
        seen.append(updates)
    return np.stack(seen)


def test_schedules_of_optimism():
    params, grads = jnp.ones(1), [jnp.ones(1)] * 2
    fade = lambda count: 1.0 / (1 + jnp.asarray(count, jnp.float32))
    ours = updates_of(eqopt.OptimisticGradientDescent(1.0, alpha=fade), grads, params)
    np.testing.assert_allclose(ours, [[-1.0], [-0.5]])
    with pytest.raises(TypeError):  # its signature says that it takes them
        updates_of(optax.optimistic_gradient_descent(1.0, alpha=fade), grads, params)
