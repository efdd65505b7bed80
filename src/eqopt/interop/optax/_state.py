"""Continues a training run of one library with the other."""

import dataclasses
from collections import deque
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import jax.tree_util as jtu
import optax

from ..._core.transformation import AbstractTransformation
from ..._types import IntegerLike, Params, State
from .._parts import learning_rates, with_rate
from ._from_optax import FromOptax, FromOptaxState
from ._pairs import (
    PARTNERS,
    WITHOUT_PARTNER,
    is_ours,
    is_theirs,
    map_nodes,
    nodes_of,
    their_fields,
)
from ._values import count_of, taken


def state_from_optax(
    opt: AbstractTransformation,
    optax_state: Any,
    params: Params,
    *,
    count: IntegerLike | None = None,
) -> State:
    """The state with which `opt` continues a training run that Optax started.

    !!! example

        ```python
        from eqopt.interop.optax import state_from_optax

        opt = eqopt.AdamW(1e-3)
        state = state_from_optax(opt, optax_state, model)
        model, state = opt.step(grads, state, model)
        ```

    Every array keeps its bits, and is not copied, except for the counts. The following
    steps equal Optax's up to rounding, except for Adan. In float32, the difference is
    smallest if Optax's optimizer comes from `optax.inject_hyperparams`.

    The hyperparameters come from `opt`, even if `optax_state` is a state of
    `optax.inject_hyperparams`. Read them from `optax_state` and pass them to `opt`.

    The following states can be converted, inside chains, masks and partitions: SGD with
    momentum, Adam, AdamW, NAdam, NAdamW, Adamax, AMSGrad, AdaBelief, Yogi, RAdam, Lion,
    LAMB, LARS, Adan, AdEMAMix, NovoGrad, RMSprop, Adagrad, Adadelta, [`eqopt.EMA`][]
    and schedules. The parts of `opt` must have the same order as in the Optax
    transformation.

    !!! warning

        A state does not identify its optimizer completely. In Optax, Adam, Adamax,
        RAdam and Yogi have states of the same type, so confusing them raises no error.

        The next steps of [`eqopt.Adan`][] differ from Optax's: it weights differences
        of gradients by `b2`, like the authors' code, while Optax uses `1 - b2`. The
        converted second moment forgets Optax's weights at the rate of `b3`.

    **Arguments:**

    - `opt`: the optimizer.
    - `optax_state`: the state that `init` or `update` of the Optax transformation
        returned.
    - `params`: the model, or the parameters that were passed to Optax.
    - `count`: the number of steps taken so far, an integer of at least 0, for parts of
        `opt` that count steps if Optax does not. Defaults to the count of the other
        parts, or to 0 if there is none, as for `optax.sgd` without a schedule.

    **Returns:**

    The state, as if `opt` had trained from the first step.

    **Raises:**

    A `ValueError` that names key paths if `optax_state` belongs to another optimizer or
    model, if its arrays have other shapes or dtypes than the state of `opt`, or if a
    count is needed and its counts differ.
    """
    template = opt.init(params)
    if isinstance(opt, FromOptax):
        expected = template.optax_state
        return FromOptaxState(taken(expected, optax_state, ".optax_state", ""))
    counted = lambda: count_of(count, optax_state)
    rates = learning_rates(opt)
    ours, theirs = nodes_of(template, is_ours), nodes_of(optax_state, is_theirs)
    new = {}
    for path, node, their_path, other in _paired(ours, theirs):
        new[path] = _converted(node, other, path, their_path, counted)
        if type(node).__name__ == "ScaleByLearningRateState":
            new[path] = with_rate(new[path], next(rates, None))
    return map_nodes(lambda path, node: new[jtu.keystr(path)], template, is_ours)


def state_to_optax(
    tx: optax.GradientTransformation,
    state: State,
    params: Params,
    *,
    count: IntegerLike | None = None,
) -> Any:
    """The state with which an Optax transformation continues a training run of eqopt.

    It is the inverse of [`eqopt.interop.optax.state_from_optax`][], which lists the
    supported states. After a round trip, every array has the same bits.

    **Arguments:**

    - `tx`: the Optax transformation. If it comes from `optax.inject_hyperparams`, its
        hyperparameters get their initial values, or the current values of its
        schedules; stateful schedules restart.
    - `state`: the state that `init`, `update` or `step` of an eqopt optimizer returned.
    - `params`: the model, or the parameters that are passed to Optax.
    - `count`: the number of steps taken so far, for `optax.inject_hyperparams`.
        Defaults to the count in `state`.

    **Returns:**

    The state of `tx`.

    **Raises:**

    A `ValueError` that names key paths, in the same cases as for its inverse.
    """
    template = FromOptax(tx).init(params).optax_state
    if isinstance(state, FromOptaxState):
        return taken(template, state.optax_state, "", ".optax_state")
    ours, theirs = nodes_of(state, is_ours), nodes_of(template, is_theirs)
    new = {
        their_path: _inverted(node, other, path, their_path)
        for path, node, their_path, other in _paired(ours, theirs)
        if other is not None
    }
    counted = lambda: count_of(count, state)
    found = lambda path, node: new[jtu.keystr(path)]
    return map_nodes(found, template, is_theirs, counted)


def _paired(ours: list, theirs: list) -> Iterator[tuple[str, Any, str, Any]]:
    """The states of both libraries that belong together, `None` for a missing one."""
    rest, fits = deque(theirs), _fits(ours, theirs)
    for i, (path, node) in enumerate(ours, 1):
        name = type(node).__name__
        if not is_ours(node):
            raise ValueError(
                f"The state of eqopt has a part at `{path or _ROOT}` that has no "
                f"counterpart in Optax. {_SUPPORTED}"
            )
        may_lack, j = name in WITHOUT_PARTNER, len(theirs) - len(rest)
        # The state of a later schedule may be the first one that is left.
        is_later = may_lack and (i, j) in fits and (i, j + 1) not in fits
        if rest and type(rest[0][1]).__name__ in PARTNERS[name] and not is_later:
            yield path, node, *rest.popleft()
        elif may_lack:
            yield path, node, "", None
        else:
            found = f"{_shown(rest)} instead" if rest else "no state is left there"
            raise ValueError(
                f"The {name} of eqopt at `{path or _ROOT}` needs a "
                f"{' or '.join(PARTNERS[name])} of Optax, but {found}. {_ORDER}"
            )
    if rest:
        raise ValueError(
            f"{_shown(rest)} of Optax, which has no counterpart in the state of eqopt. "
            + (_ORDER if is_theirs(rest[0][1]) else _SUPPORTED)
        )


def _fits(ours: list, theirs: list) -> set[tuple[int, int]]:
    """All pairs $(i, j)$ for which `ours[i:]` and `theirs[j:]` can be paired."""
    mine, other = ([type(node).__name__ for _, node in x] for x in (ours, theirs))
    fits = {(len(mine), len(other))}
    for i, name in reversed([*enumerate(mine)]):
        for j in range(len(other) + 1):
            is_pair = j < len(other) and other[j] in PARTNERS.get(name, ())
            if (is_pair and (i + 1, j + 1) in fits) or (
                name in WITHOUT_PARTNER and (i + 1, j) in fits
            ):
                fits.add((i, j))
    return fits


def _shown(rest: deque) -> str:
    path, node = rest[0]
    kind = f"a {type(node).__name__}" if is_theirs(node) else "something"
    return f"there is {kind} at `{path or _ROOT}`"


_ROOT = "(the root)"
_ORDER = (
    "Do the two optimizers have the same parts, in the same order? Learning rates, "
    "schedules and parts without state do not matter."
)
_SUPPORTED = (
    "The states of Adam and its variants, of momentum and of schedules can be "
    "converted, inside chains, masks and partitions; the documentation of "
    "`state_from_optax` lists them. For others, `from_optax(tx)` runs the Optax "
    "transformation itself."
)


def _converted(ours: Any, other: Any, path: str, their_path: str, counted: Any) -> Any:
    """`ours` with the values of `other`, and a count from elsewhere if it has none."""
    names = {} if other is None else {v: k for k, v in their_fields(other).items()}
    values = {}
    for field in dataclasses.fields(ours):
        name = names.get(field.name)
        place = f"{path}.{field.name}"
        if name is not None:
            source = getattr(other, name), place, f"{their_path}.{name}"
            values[field.name] = taken(getattr(ours, field.name), *source)
        elif field.name == "count":
            values["count"] = counted()
    # Two counts of a state must not share a buffer, which could not be donated twice.
    if "count" in values:
        values["count"] = jnp.array(values["count"])
    return dataclasses.replace(ours, **values)


def _inverted(ours: Any, other: Any, path: str, their_path: str) -> Any:
    """`other` with the values of `ours`."""
    values = {}
    for name, own in their_fields(other).items():
        source = getattr(ours, own), f"{their_path}.{name}", f"{path}.{own}"
        value = taken(getattr(other, name), *source)
        values[name] = jnp.array(value) if own == "count" else value
    return other._replace(**values)
