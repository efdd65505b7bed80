"""What a method sends: by formula for any shapes, and counted in a compiled program."""

import functools
import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jax.sharding import AxisType, PartitionSpec as P

import eqopt

from ..scaling.collectives import Collective, collectives
from ..scaling.layouts import LAYOUTS, mesh_of
from ..scaling.program import compiled
from ..scaling.transformer import Shape, Transformer
from .methods import (
    AXIS,
    BLOCK,
    DATA_PARALLEL,
    DILOCO,
    FRAGMENTS,
    POWER_SGD,
    REPLICAS,
    STREAMING,
    SYNC_EVERY,
    TRAINED,
    ZERO1,
)


class Messages(NamedTuple):
    """What each replica sends within some steps, one collective after the other."""

    sent: list[Collective]
    steps: int = 1

    @property
    def per_step(self) -> float:
        """The bytes that a replica sends in a step, on average."""
        return sum(one.sent for one in self.sent) / self.steps


@functools.cache
def shapes_of(shape: Shape) -> list[tuple[int, ...]]:
    """The shapes of all parameters of the transformer."""
    model = eqx.filter_eval_shape(Transformer, shape._replace(layers=1), jr.key(0))
    is_array = lambda x: isinstance(x, jax.ShapeDtypeStruct)
    arrays = lambda tree: [x.shape for x in jax.tree.leaves(tree) if is_array(x)]
    once = arrays(eqx.tree_at(lambda model: model.blocks, model, []))
    return once + shape.layers * arrays(model.blocks)


def messages(
    method: str, shapes: list[tuple[int, ...]], rank: int, replicas: int = REPLICAS
) -> Messages:
    """By formula. Arrays that are sent in the same way, and together, are one message."""
    of = functools.partial(Collective, group=replicas)
    total = 4 * sum(map(math.prod, shapes))
    if method == DATA_PARALLEL:
        return Messages([of("all-reduce", total)])
    if method == ZERO1:
        return Messages([of("all-reduce", total), of("all-gather", total)])
    if method == POWER_SGD:
        left, right = map(sum, zip(*(_factors(s, rank) for s in shapes), strict=True))
        return Messages([of("all-reduce", 4 * left), of("all-reduce", 4 * right)])
    if method == DILOCO:
        return Messages([of("all-reduce", total)], SYNC_EVERY)
    assert method == STREAMING
    size = sum(_in_blocks(math.prod(s), replicas) for s in shapes) / FRAGMENTS
    both = [of("all-to-all", size), of("all-gather", size)]
    return Messages(FRAGMENTS * both, SYNC_EVERY)


def _factors(shape: tuple[int, ...], rank: int) -> tuple[int, int]:
    """The numbers of P and of Q; what is sent in full is sent with P."""
    size = math.prod(shape)
    if len(shape) < 2:
        return size, 0
    m, n = shape[0], size // shape[0]
    return (size, 0) if 2 * rank * (m + n) > size else (rank * m, rank * n)


def _in_blocks(size: int, replicas: int) -> int:
    """The bytes of codes and scales: each replica averages whole blocks."""
    share = math.ceil(size / replicas)
    block = 8 * math.ceil(min(BLOCK, share) / 8)
    return replicas * math.ceil(share / block) * (block + 4)


def counted(method: str, shape: Shape, rank: int) -> Messages:
    """From the program for `REPLICAS` devices of the CPU."""
    steps = SYNC_EVERY if method in (DILOCO, STREAMING) else 1
    inner, mesh = eqopt.AdamW(1e-3), mesh_of(REPLICAS)
    if method == ZERO1:
        program = compiled(LAYOUTS[ZERO1], inner, shape, REPLICAS, mesh)
        return Messages(program.collectives, steps)
    kind = TRAINED[method]
    opt, axes = kind.wrap(inner, rank), (kind.params, kind.state)
    mesh = jax.make_mesh((REPLICAS,), (AXIS,), (AxisType.Auto,), devices=jax.devices())
    model = eqx.filter(Transformer(shape, jr.key(0)), eqx.is_inexact_array)
    each = lambda _: (model, model, opt.init(model))
    start = jax.vmap(each, out_axes=(0, *axes))
    grads, params, state = jax.eval_shape(start, jnp.arange(REPLICAS))

    def step(grads, params, state):
        own = lambda axis, tree: _where_own(lambda x: x[0], axis, tree)
        grads, params, state = own(0, grads), own(axes[0], params), own(axes[1], state)
        result = kind.step(opt, grads, state, params)
        return _where_own(lambda x: x[None], axes, result)

    specs = jax.tree.map(
        lambda axis: P() if axis is None else P(AXIS), axes, is_leaf=_is_none
    )
    mapped = jax.shard_map(step, mesh=mesh, in_specs=(P(AXIS), *specs), out_specs=specs)
    text = jax.jit(mapped).lower(grads, params, state).compile().as_text()
    assert text is not None
    return Messages(collectives(text), steps)


def _where_own(fn: Any, axes: Any, tree: Any) -> Any:
    """`tree`, with `fn` applied to arrays that replicas have for themselves."""
    one = lambda axis, part: part if axis is None else jax.tree.map(fn, part)
    return jax.tree.map(one, axes, tree, is_leaf=_is_none)


def _is_none(x: Any) -> bool:
    return x is None
