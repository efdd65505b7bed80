"""The transformations in an optimizer, in the order of its state."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array

from .._arguments.checks import check_interval
from .._combinators.chain import Chain, NamedChain
from .._combinators.partition import Partition
from .._core import AbstractOptimizer, AbstractTransformation
from .._transforms.scale import ScaleByLearningRate, at, recorded
from .._trees.leaves import label_dict


def instances_of(opt: Any, kind: type) -> Iterator[Any]:
    """The transformations of type `kind` in `opt`, a wrapper before its inner one."""
    if isinstance(opt, kind):
        yield opt
    if isinstance(opt, AbstractOptimizer):
        yield from instances_of(opt.chain, kind)
    elif isinstance(opt, Chain):
        for part in opt.transformations:
            yield from instances_of(part, kind)
    elif isinstance(opt, NamedChain | Partition):
        # In JAX's order of dictionary keys.
        for name in jtu.tree_leaves(label_dict({x: x for x in opt.names})):
            yield from instances_of(opt[name], kind)
    elif isinstance(inner := getattr(opt, "inner", None), AbstractTransformation):
        yield from instances_of(inner, kind)


def learning_rates(opt: Any) -> Iterator[ScaleByLearningRate]:
    """The learning rates in an optimizer."""
    return instances_of(opt, ScaleByLearningRate)


def with_rate(node: Any, rate: ScaleByLearningRate | None) -> Any:
    """The state of a learning rate, with the learning rate of the last step."""
    if rate is None:
        return node
    last = jnp.maximum(node.count - 1, 0)
    now = recorded(at(rate, "learning_rate", last))
    return dataclasses.replace(node, learning_rate=now)


def checked_count(given: Any) -> Array:
    """The `count` that the user passed, as an array for a state."""
    check_interval("interop", "count", given, 0)
    return jnp.asarray(given, jnp.int32)
