"""Steps of an optimizer of either library, for tests of where they depart."""

import jax
import jax.numpy as jnp


def steps_of(opt, grads_in_turn, params=None, extra=lambda i: {}):
    """What `update` returns in each step. The first gradients may be the parameters."""
    params = grads_in_turn[0] if params is None else params
    state, seen = opt.init(params), []
    for i, grads in enumerate(grads_in_turn):
        updates, state = opt.update(grads, state, params, **extra(i))
        seen.append((updates, state))
    return seen


def updates_of(opt, grads_in_turn, params=None):
    """The updates of all steps."""
    return [updates for updates, _ in steps_of(opt, grads_in_turn, params)]


def last(opt, grads_in_turn, params, extra=lambda i: {}):
    """The updates and the state of the last step."""
    return steps_of(opt, grads_in_turn, params, extra)[-1]


def finite(tree):
    return all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(tree))


def traces(opt):
    """How often three steps of bfloat16 parameters with float32 gradients are traced."""
    count = 0

    @jax.jit
    def update(grads, state, params):
        nonlocal count
        count += 1
        return opt.update(grads, state, params)[1]

    params = jnp.ones(2, jnp.bfloat16)
    state = opt.init(params)
    for _ in range(3):
        state = update(jnp.ones(2), state, params)
    return count
