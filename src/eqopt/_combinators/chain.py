"""Transformations one after the other."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx

from .._arguments.construction import described
from .._arguments.owners import recipe
from .._core.pipeline import Pipeline
from .._core.transformation import AbstractFused, AbstractTransformation
from .._trees.leaves import listed
from .._trees.routes import Report
from .._trees.states import check_keys
from .._trees.stored import check_nothing_hidden
from .._types import Params, State


class Chain(AbstractFused):
    """Applies transformations one after the other. A chain is itself a transformation.

    Leafwise neighbours are fused: one pass over each leaf runs all their equations. The
    updates between them are not rounded to the dtype of the gradients.

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

    def __init__(self, *transformations: Any):
        self.transformations = checked_parts(
            {f"argument {i}": t for i, t in enumerate(transformations)}
        )

    def __getitem__(self, index: int | slice) -> AbstractTransformation:
        if isinstance(index, slice):
            return Chain(*self.transformations[index])
        return self.transformations[index]

    def __len__(self) -> int:
        return len(self.transformations)

    def init(self, params: Params) -> tuple[State, ...]:
        return tuple(_init(self, params))

    def eval_params(self, state: State, params: Params) -> Params:
        return _eval_params(self.transformations, self._states(state), params)

    def _route(self, report: Report, params: Params) -> None:
        for part in self.transformations:
            part._route(report, params)

    def _feed(self, pipeline: Pipeline, state: State) -> Callable[[], State]:
        promises = _feed_all(self.transformations, self._states(state), pipeline)
        return lambda: tuple(promise() for promise in promises)

    def _finish(
        self, pipeline: Pipeline, state: State
    ) -> tuple[Params, Callable[[], State]]:
        params, promises = _finish_all(
            self.transformations, self._states(state), pipeline
        )
        return params, lambda: tuple(promise() for promise in promises)

    def _states(self, state: State) -> Sequence[State]:
        return checked_states(self, self.transformations, state)


class NamedChain(AbstractFused):
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

    def __init__(self, **transformations: Any):
        self.names = tuple(transformations)
        self.transformations = checked_parts(transformations)

    def __getitem__(self, name: str) -> AbstractTransformation:
        return named(self, name)

    def __len__(self) -> int:
        return len(self.transformations)

    def init(self, params: Params) -> dict[str, State]:
        return self._named(_init(self, params))

    def eval_params(self, state: State, params: Params) -> Params:
        return _eval_params(self.transformations, self._states(state), params)

    def _route(self, report: Report, params: Params) -> None:
        for part in self.transformations:
            part._route(report, params)

    def _feed(self, pipeline: Pipeline, state: State) -> Callable[[], State]:
        promises = _feed_all(self.transformations, self._states(state), pipeline)
        return lambda: self._named(promise() for promise in promises)

    def _finish(
        self, pipeline: Pipeline, state: State
    ) -> tuple[Params, Callable[[], State]]:
        params, promises = _finish_all(
            self.transformations, self._states(state), pipeline
        )
        return params, lambda: self._named(promise() for promise in promises)

    def _named(self, states: Any) -> dict[str, State]:
        return dict(zip(self.names, states, strict=True))

    def _states(self, state: State) -> Sequence[State]:
        check_keys(self, state, self.names)
        return [state[name] for name in self.names]


def named(owner: Any, name: Any) -> AbstractTransformation:
    """The part with that name; a `KeyError` that lists the names if there is none."""
    if name not in owner.names:
        raise KeyError(
            f"{type(owner).__name__}: there is no part {name!r}. The names are "
            f"{listed([*map(repr, owner.names)], quote='')}."
        )
    return owner.transformations[owner.names.index(name)]


def checked_parts(
    transformations: Mapping[Any, Any], whole: str = "A chain"
) -> tuple[AbstractTransformation, ...]:
    for name, t in transformations.items():
        if not isinstance(t, AbstractTransformation):
            raise TypeError(
                f"{whole} must consist of eqopt transformations, but {name} is "
                f"{described(t)}"
                + (" Unpack it: `Chain(*parts)`." if type(t) in (list, tuple) else "")
            )
    return tuple(transformations.values())


def checked_states(
    owner: AbstractTransformation,
    transformations: Sequence[AbstractTransformation],
    state: State,
) -> tuple[State, ...]:
    """`state`; raises a `TypeError` unless it is a tuple with a state for each part."""
    count, name = len(transformations), recipe() or type(owner).__name__
    if type(state) is not tuple or len(state) != count:
        found = (
            f"a tuple of {len(state)}"
            if isinstance(state, tuple)
            else f"a {type(state).__name__}"
        )
        raise TypeError(
            f"The state of this {name} is a tuple of {count} states, one for each of "
            f"{[type(t).__name__ for t in transformations]}, but it got {found}. Is "
            "it the state of another optimizer? Pass the state that `init` or "
            f"`update` of this {name} returned."
        )
    return state


def _init(chain, params):
    states = [t.init(params) for t in chain.transformations]
    check_nothing_hidden(type(chain).__name__, states[:-1])
    return states


def _feed_all(transformations, states, pipeline):
    return [t._feed(pipeline, s) for t, s in zip(transformations, states, strict=True)]


def _finish_all(transformations, states, pipeline):
    """All parts but the last add to the pipeline; the last one makes the step."""
    if not transformations:
        return pipeline.apply(), []
    promises = _feed_all(transformations[:-1], states[:-1], pipeline)
    params, last = transformations[-1]._finish(pipeline, states[-1])
    return params, [*promises, last]


def _eval_params(transformations, states, params):
    pairs = zip(transformations, states, strict=True)
    return functools.reduce(lambda p, ts: ts[0].eval_params(ts[1], p), pairs, params)
