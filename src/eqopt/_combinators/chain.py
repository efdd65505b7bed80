"""Transformations one after the other."""

import abc
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, overload

import equinox as eqx

from .._arguments.extra import required_params
from .._core import (
    AbstractTransformation,
    add_updates,
    check_wide,
    keep_norm,
    rounded_like,
    widened,
)
from .._errors import InputError
from .._trees.routes import Report
from .._trees.states import check_keys
from .._trees.stored import check_nothing_hidden, hides_params
from .._types import Model, Params, SameState, State, Updates


if TYPE_CHECKING:
    _Part: TypeAlias = AbstractTransformation
else:
    _Part = Any  # `checked_parts` checks it, and names the part


class AbstractChain(AbstractTransformation):
    """Applies its `transformations` one after the other."""

    _loads = "nothing"

    transformations: eqx.AbstractVar[tuple[AbstractTransformation, ...]]

    @abc.abstractmethod
    def _states(self, state: State) -> Sequence[State]:
        """The states of the parts; an error if `state` has not one for each."""

    @abc.abstractmethod
    def _joined(self, states: Sequence[State]) -> State:
        """The inverse of `_states`."""

    def __len__(self) -> int:
        return len(self.transformations)

    def __iter__(self) -> Iterator[AbstractTransformation]:
        return iter(self.transformations)

    def init(self, params: Params) -> State:
        states = [part.init(params) for part in self.transformations]
        check_nothing_hidden(self, states[:-1])
        return self._joined(states)

    def update(
        self,
        updates: Updates,
        state: SameState,
        params: Params | None = None,
        **extra: Any,
    ) -> tuple[Updates, SameState]:
        if hides_params(state):
            check_wide(updates)
        states = self._states(state)
        new, states, _ = _apply(self.transformations, updates, states, params, extra)
        return rounded_like(new, updates), self._joined(states)

    def step(
        self, grads: Updates, state: SameState, params: Model, **extra: Any
    ) -> tuple[Model, SameState]:
        states = self._states(state)
        if not self.transformations:
            required_params(params)
            return add_updates(params, grads), state
        *parts, last = self.transformations
        updates, new, more = _apply(parts, grads, states[:-1], params, extra)
        # The last part computes the new parameters.
        params, own = last.step(updates, states[-1], params, **more)
        pairs = zip(parts, new, strict=True)
        new = [part._in_turn(params, x, updates) for part, x in pairs]
        return params, self._joined([*new, own])

    def eval_params(self, state: State, params: Model) -> Model:
        for part, own in zip(self.transformations, self._states(state), strict=True):
            params = part.eval_params(own, params)
        return params

    def _route(self, report: Report, params: Params) -> None:
        for part in self.transformations:
            part._route(report, params)


def _apply(
    parts: Sequence[AbstractTransformation],
    updates: Updates,
    states: Sequence[State],
    params: Params | None,
    extra: Mapping[str, Any],
) -> tuple[Updates, list[State], Mapping[str, Any]]:
    """The updates after these parts, their new states, and `extra` for these updates."""
    updates, new = widened(updates), []
    for part, own in zip(parts, states, strict=True):
        before = updates
        updates, own = part.update(updates, own, params, **extra)
        new.append(own)
        extra = keep_norm(extra, updates, before)
    return updates, new, extra


class Chain(AbstractChain):
    """Applies transformations one after the other. A chain is itself a transformation.

    Under `jit`, XLA fuses the equations of neighbours: one pass over each leaf runs all
    of them. The updates between them are not rounded to the dtype of the gradients.

    !!! example

        ```python
        opt = eqopt.Chain(eqopt.ClipByGlobalNorm(1.0), eqopt.Adam(1e-3))
        ```

    The state is the tuple of the states. `opt[i]` is a part, `opt[i:j]` a shorter chain,
    `len(opt)` the number of parts.

    **Arguments:**

    - `transformations`: any number of transformations, optimizers and chains.

    **Raises:**

    A `TypeError` if an argument is not a transformation.
    """

    transformations: tuple[AbstractTransformation, ...]

    def __init__(self, *transformations: _Part) -> None:
        named = {f"argument {i}": t for i, t in enumerate(transformations)}
        self.transformations = checked_parts(named)

    @overload
    def __getitem__(self, index: int) -> AbstractTransformation: ...

    @overload
    def __getitem__(self, index: slice) -> "Chain": ...

    def __getitem__(self, index: int | slice) -> AbstractTransformation:
        if isinstance(index, slice):
            return Chain(*self.transformations[index])
        return self.transformations[index]

    def _states(self, state: State) -> Sequence[State]:
        return checked_states(self.transformations, state)

    def _joined(self, states: Sequence[State]) -> tuple[State, ...]:
        return tuple(states)


class NamedChain(AbstractChain):
    """A [`eqopt.Chain`][] with names for its parts and their states.

    !!! example

        ```python
        opt = eqopt.NamedChain(clip=eqopt.ClipByGlobalNorm(1.0), adam=eqopt.Adam(1e-3))
        state = opt.init(model)
        state["adam"]
        ```

    The state is the dictionary of the states. `opt["adam"]` is a part.

    **Arguments:**

    - `transformations`: transformations by name, in the order in which they apply.

    **Raises:**

    A `TypeError` if one of them is not a transformation.
    """

    names: tuple[str, ...] = eqx.field(static=True)
    transformations: tuple[AbstractTransformation, ...]

    def __init__(self, **transformations: _Part) -> None:
        self.names = tuple(transformations)
        self.transformations = checked_parts(transformations)

    def __getitem__(self, name: str) -> AbstractTransformation:
        return dict(zip(self.names, self.transformations, strict=True))[name]

    def _joined(self, states: Sequence[State]) -> dict[str, State]:
        return dict(zip(self.names, states, strict=True))

    def _states(self, state: State) -> Sequence[State]:
        check_keys(state, self.names)
        return [state[name] for name in self.names]


def checked_parts(parts: Mapping[Any, Any]) -> tuple[AbstractTransformation, ...]:
    for name, t in parts.items():
        if not isinstance(t, AbstractTransformation):
            from .._wrong_calls import described  # imported only for an error

            raise InputError(
                f"{name} must be an eqopt transformation, but is {described(t)}"
                + (" Unpack it: `Chain(*parts)`." if type(t) in (list, tuple) else "")
            )
    return tuple(parts.values())


def checked_states(
    transformations: Sequence[AbstractTransformation], state: State
) -> tuple[State, ...]:
    """`state`; raises an error unless it is a tuple with a state for each part."""
    count = len(transformations)
    if type(state) is not tuple or len(state) != count:
        is_tuple = isinstance(state, tuple)
        found = f"a tuple of {len(state)}" if is_tuple else f"a {type(state).__name__}"
        raise InputError(
            f"`state` must be a tuple of {count} states, one for each of "
            f"{[type(t).__name__ for t in transformations]}, but is {found}. Pass the "
            "state that `init` or `update` of this optimizer returned."
        )
    return state
