"""Compiles a training step for a layout, and inspects the program."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.random as jr
from jax.sharding import Mesh, NamedSharding, Sharding
from jaxtyping import PyTree

from .collectives import Collective, collectives
from .layouts import Layout
from .transformer import Shape, Transformer, batch_of, loss


class Program(NamedTuple):
    """A compiled step.

    **Attributes:**

    - `step`: a function of parameters, state and a batch.
    - `shapes`: shapes of these arguments, with their placement.
    - `start`: returns the first arguments. It needs the devices, and compiling does not.
    """

    step: Any
    shapes: tuple[PyTree, PyTree, Any]
    start: Callable[[], tuple[PyTree, PyTree, Any]]

    @property
    def collectives(self) -> list[Collective]:
        return collectives(self.step.as_text())


def compiled(layout: Layout, opt: Any, shape: Shape, batch: int, mesh: Mesh) -> Program:
    """A training step that updates everything except the batch in place."""
    opt = layout.wrap(opt, mesh)
    arrays, static = eqx.partition(Transformer(shape, jr.key(0)), eqx.is_inexact_array)
    params = placed(arrays, layout.shardings(arrays, mesh))
    state = state_of(opt, params)
    tokens = batch_of(shape, batch)
    shapes = params, state, placed(tokens, NamedSharding(mesh, layout.batch))

    # Results keep the sharding of the arguments. Otherwise, XLA would choose it.
    places = jax.tree.map(lambda x: x.sharding, shapes[:2])

    @functools.partial(jax.jit, donate_argnums=(0, 1), out_shardings=(*places, None))
    def step(params, state, tokens):
        whole = eqx.combine(params, static)
        value, grads = eqx.filter_value_and_grad(loss)(whole, tokens)
        return *opt.step(grads, state, params), value

    def start():
        first = jax.device_put((arrays, tokens), (places[0], shapes[2].sharding))
        return first[0], jax.jit(opt.init)(first[0]), first[1]

    return Program(step.lower(*shapes).compile(), shapes, start)


def placed(arrays: PyTree, places: PyTree[Sharding]) -> PyTree[jax.ShapeDtypeStruct]:
    """Shapes of these arrays, with a placement."""
    shape = lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s)
    if isinstance(places, Sharding):
        places = jax.tree.map(lambda _: places, arrays)
    return jax.tree.map(shape, arrays, places)


def state_of(opt: Any, params: PyTree[jax.ShapeDtypeStruct]) -> PyTree:
    """Shapes of the state, placed as a compiled `init` places them."""
    places = jax.jit(opt.init).lower(params).compile().output_shardings
    return placed(jax.eval_shape(opt.init, params), places)


def bytes_in(shapes: PyTree) -> int:
    """The bytes of all arrays."""
    leaves = jax.tree.leaves(shapes)
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in leaves)


def bytes_per_device(shapes: PyTree) -> int:
    """The bytes of these arrays on one device."""
    shards = [(x.sharding.shard_shape(x.shape), x) for x in jax.tree.leaves(shapes)]
    return sum(math.prod(shape) * x.dtype.itemsize for shape, x in shards)
