"""The transformations in an optimizer, and the states in its state."""

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
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
    check_interval("count", given, 0)
    return jnp.asarray(given, jnp.int32)


# The fields of wrappers that have the states of other transformations.
INNER = "inner_state", "inner_opt_state"


def nodes_of(state: Any, is_node: Callable[[Any], bool]) -> list[tuple[tuple, Any]]:
    """The states in a state that hold arrays, with their key paths.

    A wrapper comes before its inner states.
    """
    found = []
    map_nodes(lambda *pair: found.append(pair) or pair[1], state, is_node)
    return found


def map_nodes(
    fn: Callable[[tuple, Any], Any],
    state: Any,
    is_node: Callable[[Any], bool],
    before: tuple = (),
) -> Any:
    """`state` with `fn` applied to each state in it that holds arrays.

    The result for a wrapper then gets the results for its inner states.
    """

    def visit(path: tuple, node: Any) -> Any:
        path = (*before, *path)
        if not jtu.tree_leaves(node):
            return node
        new = fn(path, node)
        for name in INNER:
            if hasattr(node, name):
                within = (*path, jtu.GetAttrKey(name))
                inner = map_nodes(fn, getattr(node, name), is_node, within)
                replace = getattr(new, "_replace", partial(dataclasses.replace, new))
                new = replace(**{name: inner})
        return new

    return jtu.tree_map_with_path(visit, state, is_leaf=is_node)
