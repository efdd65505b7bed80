"""The arguments of a call, and the part of them for each microbatch."""

import inspect
from collections.abc import Callable, Mapping, Sequence
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
    key: int | str | None  # the place of a key, if each microbatch gets another one

    def rebuild(self, leaves: Sequence[Any], state: Any, index: Any) -> Any:
        """`args` and `kwargs` for the microbatch `index`, or for one row of it.

        **Arguments:**

        - `leaves`: the leaves of the batch, for this microbatch or row.
        - `state`: the `eqx.nn.State` that the previous microbatch returned, if any.
        - `index`: the number of the microbatch.
        """
        args, kwargs = self.batch.treedef.unflatten(leaves)
        if self.state is not None:
            args, kwargs = replace(args, kwargs, {self.state.place: state})
        if self.key is not None:
            # With the same key, all microbatches would have the same dropout masks.
            key = jr.fold_in((dict(enumerate(args)) | kwargs)[self.key], index)
            args, kwargs = replace(args, kwargs, {self.key: key})
        return args, kwargs


def find_arguments(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    batch_axes: Mapping[int | str, int | None],
    size: int | None,
    key: int | str | None,
) -> Arguments:
    """Separates the batch, the State and a single key, the argument at the place `key`.

    A single key with a batch axis is split into one per row. One that `batch_axes` does
    not contain is folded with the number of the microbatch. The other arguments are the
    same as for `find_batch`.
    """
    by_place = dict(enumerate(args)) | kwargs
    others = {i: x for i, x in by_place.items() if batch_axes.get(i) is None}
    state = find_state(others)
    if state is not None:
        args, kwargs = replace(args, kwargs, {state.place: None})
    if key is None or not is_single_key(by_place[key]):
        key = None
    elif batch_axes.get(key) is not None:
        # The number of keys follows from the other arguments.
        rest = replace(args, kwargs, {key: None})
        batch = find_batch(*rest, {**batch_axes, key: None}, size)
        args, kwargs = replace(args, kwargs, {key: split_key(by_place[key], batch)})
        batch_axes = {**batch_axes, key: 0}
    batch = find_batch(args, kwargs, batch_axes, size)
    return Arguments(batch, state, None if key in batch_axes else key)


def replace(
    args: tuple[Any, ...], kwargs: dict[str, Any], new: Mapping[int | str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Replaces the arguments at the places in `new`."""
    args = tuple(new.get(i, x) for i, x in enumerate(args))
    return args, {name: new.get(name, x) for name, x in kwargs.items()}


def list_places(
    fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[int | str, int | str]:
    """Lists where a call passes the argument with each number and each name.

    A place is an index in `args` or a name in `kwargs`. A number is a position in the
    signature, however the argument is passed: `eqx.filter_jit` passes by position
    whatever it can. Negative numbers count from the last position in use.
    """
    try:
        parameters = inspect.signature(fun).parameters.values()
    except (TypeError, ValueError):  # builtins may have no signature
        parameters = ()
    names = [p.name for p in parameters if p.kind <= p.POSITIONAL_OR_KEYWORD]
    places = {i: name for i, name in enumerate(names) if name in kwargs}
    places |= {i: i for i in range(len(args))}
    end = max(places, default=-1) + 1
    return {
        **places,
        **{i - end: place for i, place in places.items()},
        **dict(zip(names, range(len(args)), strict=False)),
        **{name: name for name in kwargs},
    }


def find_places(
    places: Mapping[int | str, int | str],
    argnums: tuple[int, ...],
    argnames: tuple[str, ...] = (),
    prefix: str = "",
) -> tuple[int | str, ...]:
    """Finds the arguments with these numbers and names among `places`.

    `prefix`: what the public function writes before `argnums` and `argnames`.
    """
    for x in (*argnums, *argnames):
        if x not in places:
            passed = set(places.values())
            names = sorted(place for place in passed if isinstance(place, str))
            raise ValueError(
                f"`{prefix}{'argnums' if isinstance(x, int) else 'argnames'}` contains "
                f"{x!r}, but this call has no such argument: it has "
                f"{len(passed) - len(names)} positional arguments and the keyword "
                f"arguments {names}. A keyword-only argument has no number, and one in "
                "`*args` has no name."
            )
    found = tuple(places[x] for x in (*argnums, *argnames))
    if len(set(found)) != len(found):
        names = f" with `{prefix}argnames={argnames}`" if argnames else ""
        raise ValueError(f"`{prefix}argnums={argnums}`{names} names an argument twice.")
    return found
