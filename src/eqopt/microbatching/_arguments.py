"""The arguments of a call, and the part of them for each microbatch."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.random as jr

from ._keys import is_single_key, split_key
from ._rows import Batch, find_batch
from ._state import StateArgument, find_state


class Arguments(eqx.Module):
    """The arguments of a function: a batch, and everything else."""

    batch: Batch
    state: StateArgument | None
    folds_key: bool  # whether each microbatch gets another `key`

    def rebuild(self, leaves: Sequence[Any], state: Any, index: Any) -> Any:
        """`args` and `kwargs` for the microbatch `index`, or for one row of it.

        **Arguments:**

        - `leaves`: the leaves of the batch, for this microbatch or row.
        - `state`: the `eqx.nn.State` that the previous microbatch returned, if any.
        - `index`: the number of the microbatch.
        """
        args, kwargs = self.batch.treedef.unflatten(leaves)
        if self.state is not None:
            args, kwargs = _replace(args, kwargs, self.state.place, state)
        if self.folds_key:
            # With the same key, all microbatches would have the same dropout masks.
            kwargs = {**kwargs, "key": jr.fold_in(kwargs["key"], index)}
        return args, kwargs


def find_arguments(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    arg_axes: Sequence[int | None],
    kwarg_axes: dict[str, int],
    size: int | None,
) -> Arguments:
    """Separates the batch, the State and a single key in `kwargs["key"]`.

    If `kwarg_axes` contains it, a single key is split into one per row. Otherwise, it
    is folded with the number of the microbatch. The arguments are the same as for
    `find_batch`.
    """
    others = {i: x for i, x in enumerate(args) if arg_axes[i] is None}
    others |= {name: x for name, x in kwargs.items() if name not in kwarg_axes}
    state = find_state(others)
    if state is not None:
        args, kwargs = _replace(args, kwargs, state.place, None)
    single = is_single_key(kwargs.get("key"))
    if single and "key" in kwarg_axes:
        # The number of keys follows from the other arguments.
        rest = {name: x for name, x in kwargs.items() if name != "key"}
        rest_axes = {name: a for name, a in kwarg_axes.items() if name != "key"}
        batch = find_batch(args, rest, arg_axes, rest_axes, size)
        kwargs = {**kwargs, "key": split_key(kwargs["key"], batch)}
        kwarg_axes = {**kwarg_axes, "key": 0}
    batch = find_batch(args, kwargs, arg_axes, kwarg_axes, size)
    return Arguments(batch, state, single and "key" not in kwarg_axes)


def _replace(
    args: tuple[Any, ...], kwargs: dict[str, Any], place: int | str, x: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(place, int):
        return (*args[:place], x, *args[place + 1 :]), kwargs
    return args, {**kwargs, place: x}


def resolve_argnums(name: str, argnums: Sequence[int], count: int) -> tuple[int, ...]:
    for i in argnums:
        if not -count <= i < count:
            raise ValueError(
                f"`{name}` contains {i}, but this call has {count} positional "
                "arguments. Arguments that are passed by keyword have no number."
            )
    resolved = tuple(i % count for i in argnums)
    if len(set(resolved)) != len(resolved):
        raise ValueError(f"`{name}={tuple(argnums)}` names an argument twice.")
    return resolved


def check_argnames(names: str, argnums: str, argnames: Any, kwargs: Any) -> None:
    for name in argnames:
        if name not in kwargs:
            raise ValueError(
                f"`{names}` contains {name!r}, but this call has no such keyword "
                f"argument: it has {sorted(kwargs)}. If it is passed by position, put "
                f"its position in `{argnums}`."
            )
