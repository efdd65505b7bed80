"""The `eqx.nn.State` that is passed from one microbatch to the next."""

from typing import Any, TypeGuard

import equinox as eqx
import jax.tree_util as jtu

from .._types import PyTree


class StateArgument(eqx.Module):
    """The `eqx.nn.State` among the arguments of a call."""

    place: int | str  # the number or the name of the argument
    value: eqx.nn.State

    @property
    def where(self) -> str:
        return _where(self.place)


def is_state(x: Any) -> TypeGuard[eqx.nn.State]:
    return isinstance(x, eqx.nn.State)


def find_state(arguments: dict[int | str, Any]) -> StateArgument | None:
    """The `eqx.nn.State` among `arguments` that are not batches, if there is one.

    **Raises:**

    `ValueError` if there are several.
    """
    found = [StateArgument(k, x) for k, x in arguments.items() if is_state(x)]
    if len(found) > 1:
        raise ValueError(
            f"Both `{found[0].where}` and `{found[1].where}` are an `eqx.nn.State`, "
            "but only one can be passed from microbatch to microbatch. Create one "
            "model of the two with `eqx.nn.make_with_state`, and get the parts of its "
            "state with `state.substate`."
        )
    return found[0] if found else None


def check_state(argument: StateArgument, output: PyTree) -> None:
    """Raises a `ValueError` unless any State in the output can replace the argument."""
    leaves = jtu.tree_leaves_with_path(output, is_leaf=is_state)
    states = [(f"output{jtu.keystr(p)}", x) for p, x in leaves if is_state(x)]
    if len(states) > 1:
        raise ValueError(
            f"Both `{states[0][0]}` and `{states[1][0]}` are an `eqx.nn.State`, but "
            f"only one can replace `{argument.where}` for the next microbatch. Return "
            "only the last one."
        )
    for where, state in states:
        _check_type(where, state, argument)


def check_no_state(path: Any, output: PyTree) -> None:
    """Raises a `ValueError` if a custom accumulator at `path` would get a State."""
    for subpath, x in jtu.tree_leaves_with_path(output, is_leaf=is_state):
        if is_state(x):
            raise ValueError(
                f"`accumulator{jtu.keystr(path)}` is an `Accumulator` for a part of "
                "the output that contains an `eqx.nn.State`, "
                f"`output{jtu.keystr(path + subpath)}`. A State is passed on to the "
                "next microbatch, not accumulated. Pass a separate accumulator for "
                "each part of the output."
            )


def _check_type(where: str, state: eqx.nn.State, argument: StateArgument) -> None:
    found = jtu.tree_structure(state)
    expected = jtu.tree_structure(argument.value)
    if found != expected:
        raise ValueError(
            f"`{where}`, the `eqx.nn.State` for the next microbatch, has another "
            f"structure than `{argument.where}`. If it is a substate, return "
            "`state.update(substate)`.\n"
            f"Found:    {found}\nExpected: {expected}"
        )
    leaves = jtu.tree_leaves_with_path(state)
    for (path, a), b in zip(leaves, jtu.tree_leaves(argument.value), strict=True):
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            raise ValueError(
                f"`{where}{jtu.keystr(path)}`, in the `eqx.nn.State` for the next "
                f"microbatch, has shape {a.shape} and dtype {a.dtype}, but in "
                f"`{argument.where}` it has {b.shape} and {b.dtype}. Cast it back in "
                "the function."
            )


def _where(place: int | str) -> str:
    return f"args[{place}]" if isinstance(place, int) else f"kwargs[{place!r}]"
