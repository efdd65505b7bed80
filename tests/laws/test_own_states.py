"""States of users, whose fields have converters and whose class has a check.

Equinox calls both whenever something makes or replaces a state by its constructor, also
with tracers, shapes and stored leaves in it.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jaxtyping import Array, PyTree

import eqopt

from .subjects import assert_equal, grads_of, params_of, step
from .test_eval_params import WRAPPERS


class PlainState(eqx.Module):
    trace: PyTree
    count: Array


class CheckedState(eqx.Module):
    trace: PyTree = eqx.field(converter=lambda tree: jax.tree.map(jnp.asarray, tree))
    count: Array = eqx.field(converter=jnp.asarray)

    def __check_init__(self):
        found = {x.dtype for x in jax.tree.leaves(self.trace)}
        if self.count.dtype != jnp.int32 or jnp.dtype(jnp.int32) in found:
            raise ValueError(f"a wrong state: {self}")


@eqopt.equation(elementwise=True)
def heavy_ball(g, trace, *, decay):
    trace = decay * trace + g
    return trace, trace


class HeavyBall(eqopt.AbstractLeafwise):
    state: type = eqx.field(static=True)
    decay: float = 0.9

    def init(self, params):
        zeros = eqopt.tree.zeros_like(params)
        return self.state(zeros, jnp.zeros((), jnp.int32))

    def leafwise(self, state, params=None, **extra):
        new = dataclasses.replace(state, count=state.count + 1)
        return eqopt.Leafwise(heavy_ball, new)


IN_BLOCKS = eqopt.storage.BlockwiseQuantized(block_size=2)
AROUND = {
    **WRAPPERS,
    "in 8 bits": lambda opt: eqopt.StoreState(opt, IN_BLOCKS, eqopt.groups.everything),
    "StoreParams": lambda opt: eqopt.StoreParams(opt, eqopt.storage.MasterWeights()),
}


@pytest.mark.parametrize("name", AROUND)
@pytest.mark.costly
def test_they_survive_steps_wrappers_and_checkpoints(name, tmp_path):
    """The same transformation with a plain state gives the same arrays."""
    params = params_of(jnp.bfloat16 if name == "StoreParams" else jnp.float32)
    found = []
    for cls in (CheckedState, PlainState):
        opt = AROUND[name](eqopt.Chain(HeavyBall(cls), eqopt.Scale(-0.1)))
        state = like = eqx.filter_eval_shape(opt.init, params)
        state, model = opt.init(params), params
        for i in range(4):
            if i == 2:
                eqopt.checkpoint.save(tmp_path / "run.eqx", state)
                state = eqopt.checkpoint.load(tmp_path / "run.eqx", like)
            grads = grads_of(params, i, jnp.float32)
            model, state = step(opt, grads, state, model)
        moved = eqopt.tree.migrate(opt, state, model)
        evaluated = opt.eval_params(state, model)
        kept = [*map(jax.tree.leaves, (state, moved))]
        found.append((model, evaluated, kept))
        is_own = lambda x, cls=cls: isinstance(x, cls)
        assert any(map(is_own, jax.tree.leaves(state, is_leaf=is_own)))
    assert_equal(*found)
