"""The state of a worker, and its parts for fragments of similar size."""

import math
from collections.abc import Sequence
from typing import Any

import equinox as eqx
from jaxtyping import Array, Int

from ..._trees.leaves import flatten_updates, is_leaf, restrict
from ..._types import Params, State


class DiLoCoState(eqx.Module):
    r"""The state of one worker: what it has for itself, and what all workers share.

    **Attributes:**

    - `inner_state`: the inner state, which differs between workers.
    - `phase`: the number of inner steps; from $2H$, it goes back to $H$. A 0-d int32
        array.
    - `slow`: the parameters after the last outer step, a tree like the parameters, in
        at least float32.
    - `outer_state`: the state of the outer optimizer for each fragment, a tuple.
    - `error`: what this worker has not sent yet, a tree like the parameters, in at least
        float32; `None` without a compressor.
    - `memory`: what the compressor remembers about each parameter, or `None`.
    """

    inner_state: State
    phase: Int[Array, ""]
    slow: Params
    outer_state: State
    error: Params | None
    memory: Params | None

    @classmethod
    def prefix(cls, own: Any, shared: Any) -> "DiLoCoState":
        """A prefix of the state, for the arguments of `jax.shard_map` and `jax.vmap`.

        **Arguments:**

        - `own`: the value for everything that differs between workers, such as
            `P("workers")` for `in_specs`, or 0 for `in_axes`.
        - `shared`: the value for everything that all workers share: `P()` or `None`.
        """
        return cls(own, shared, shared, shared, own, shared)


class Outer(eqx.Module):
    """What the state of a worker has for the outer steps of one fragment."""

    slow: Params
    state: State
    error: Params | None
    memory: Params | None


def parts_of(state: DiLoCoState, count: int) -> list[Outer]:
    """The parts of a state for each of the fragments."""

    def of(name, part):
        tree = getattr(state, name)
        if tree is None:
            return None
        return restrict(tree, part, f"state.{name}", "state.slow")

    parts = zip(fragments_of(state.slow, count), state.outer_state, strict=True)
    return [Outer(x, own, of("error", x), of("memory", x)) for x, own in parts]


def joined(inner_state: State, phase: Array, parts: Sequence[Outer]) -> DiLoCoState:
    """The state with these parts."""
    whole = lambda name: eqx.combine(
        *(getattr(x, name) for x in parts), is_leaf=is_leaf
    )
    return DiLoCoState(
        inner_state=inner_state,
        phase=phase,
        slow=whole("slow"),
        outer_state=tuple(x.state for x in parts),
        error=whole("error"),
        memory=whole("memory"),
    )


def fragments_of(params: Params, count: int) -> list[Params]:
    """Trees like `params`, with `None` at the arrays that other fragments have.

    Fragments without arrays are last.
    """
    if count == 1:
        return [params]
    leaves, treedef = flatten_updates(params)
    sizes = {i: math.prod(x.shape) for i, x in enumerate(leaves) if x is not None}
    totals, owners = [0] * count, {}
    for i in sorted(sizes, key=lambda i: -sizes[i]):  # stable
        owners[i] = smallest = totals.index(min(totals))
        totals[smallest] += sizes[i]
    return [
        treedef.unflatten(
            x if owners.get(i) == number else None for i, x in enumerate(leaves)
        )
        for number in range(count)
    ]
