"""Steps on gradients that are known in advance."""

import jax.numpy as jnp
import numpy as np


def trajectory(opt, grads, p):
    """The parameters after each step."""
    params, seen = jnp.asarray(p, jnp.float32), []
    state = opt.init(params)
    for g in grads:
        params, state = opt.step(jnp.asarray(g, jnp.float32), state, params)
        seen.append(params)
    return np.stack(seen)


GRADS = np.random.default_rng(0).normal(size=(6, 5))
START = np.linspace(-2, 2, 5)
