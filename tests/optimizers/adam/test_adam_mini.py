"""Adam-mini: how it agrees with Adam, and how much less it stores."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt
from eqopt.groups import BlockAxes


def test_state_of_a_model_is_half_of_adams():
    model = eqx.nn.MultiheadAttention(4, 64, key=jax.random.key(0))
    mini, adam = (
        sum(x.size for x in jax.tree.leaves(opt.init(model)))
        for opt in (eqopt.AdamMini(0.1), eqopt.Adam(0.1))
    )
    assert mini < 0.51 * adam


def test_without_eps_zero_over_zero_is_zero():
    opt = eqopt.ScaleByAdamMini(eps=0.0, block_axes=BlockAxes(-1))
    params = jnp.ones((2, 3))
    updates, _ = opt.update(params.at[0].set(0), opt.init(params))
    np.testing.assert_allclose(updates, [[0, 0, 0], [1, 1, 1]], rtol=1e-6)


def test_the_state_of_another_model():
    opt = eqopt.ScaleByAdamMini(block_axes=BlockAxes(-1))
    state = opt.init({"w": jnp.ones((4, 3))})
    wrong = eqx.tree_at(lambda s: s.nu, state, {"w": jnp.ones((3, 1))})
    with pytest.raises(ValueError, match=r"\['w'\]"):
        opt.update({"w": jnp.ones((4, 3))}, wrong)


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


def test_arrays_without_elements():
    opt = eqopt.ScaleByAdamMini()
    params = [jnp.ones((0, 3)), jnp.ones((2, 0))]
    updates, state = opt.update(params, opt.init(params))
    assert [u.shape for u in updates] == [(0, 3), (2, 0)]
    assert not any(np.isnan(x).any() for x in state.nu)
