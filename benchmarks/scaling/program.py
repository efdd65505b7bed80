"""Compiles a training step for a layout, and inspects the program."""

import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.random as jr
from jax.sharding import Mesh, NamedSharding

from .collectives import Collective, collectives
from .layouts import Layout
from .transformer import Shape, Transformer, batch_of, loss


class Program(NamedTuple):
    """A compiled step and its initial arguments: parameters, state and a batch."""

    step: Any
    arguments: tuple[Any, Any, Any]

    @property
    def collectives(self) -> list[Collective]:
        return collectives(self.step.as_text())


def compiled(layout: Layout, opt: Any, shape: Shape, batch: int, mesh: Mesh) -> Program:
    """A training step that updates everything except the batch in place."""
    opt = layout.wrap(opt, mesh)
    arrays, static = eqx.partition(Transformer(shape, jr.key(0)), eqx.is_inexact_array)
    params = jax.device_put(arrays, layout.shardings(arrays, mesh))
    state, other = eqx.partition(jax.jit(opt.init)(params), eqx.is_array)
    tokens = jax.device_put(batch_of(shape, batch), NamedSharding(mesh, layout.batch))

    # Results keep the sharding of the arguments. Otherwise, XLA would choose it.
    places = jax.tree.map(lambda x: x.sharding, (params, state))

    @functools.partial(jax.jit, donate_argnums=(0, 1), out_shardings=(*places, None))
    def step(params, state, tokens):
        whole = eqx.combine(params, static)
        value, grads = eqx.filter_value_and_grad(loss)(whole, tokens)
        params, new = opt.step(grads, eqx.combine(state, other), params)
        return params, eqx.filter(new, eqx.is_array), value

    arguments = params, state, tokens
    return Program(step.lower(*arguments).compile(), arguments)


def bytes_per_device(tree: Any) -> int:
    """The bytes of a tree on its first device."""
    arrays = jax.tree.leaves(eqx.filter(tree, eqx.is_array))
    return sum(x.addressable_shards[0].data.nbytes for x in arrays)
