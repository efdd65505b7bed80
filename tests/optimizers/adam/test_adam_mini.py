"""Adam-mini: how it agrees with Adam, and how much less it stores."""

import equinox as eqx
import jax
import jax.numpy as jnp

import eqopt
from eqopt.groups import BlockAxes


def test_blocks_that_the_user_defines():
    """The default blocks, except for one array."""

    class Model(eqx.Module):
        query: jax.Array
        out: eqx.nn.Linear

    def blocks(params):
        return eqx.tree_at(
            lambda m: m.query, eqopt.groups.layer_blocks(params), BlockAxes((0, 1), 2)
        )

    model = Model(jnp.ones((4, 3)), eqx.nn.Linear(3, 5, key=jax.random.key(0)))
    state = eqopt.ScaleByAdamMini(block_axes=blocks).init(model)
    assert state.nu.query.shape == (2, 1)
    assert state.nu.out.weight.shape == (5, 1)
