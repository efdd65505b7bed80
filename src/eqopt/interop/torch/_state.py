"""Continuing a training of torch."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..._transformation import AbstractTransformation
from ..._types import IntegerLike, Mask, Params, State
from ._arrays import array_of, shape_of
from ._convert import Converter
from ._places import given_in, places


def state_from_torch(
    opt: AbstractTransformation,
    state_dict: Any,
    params: Params,
    *,
    paths: Sequence[str | None] | None = None,
    transpose: Mask | None = None,
    count: IntegerLike | None = None,
) -> State:
    """The state with which `opt` continues a training that torch began.

    !!! example

        ```python
        from eqopt.interop.torch import from_torch, params_from_torch, state_from_torch

        model = params_from_torch(network.parameters(), model)
        opt = from_torch(optimizer)
        state = state_from_torch(opt, optimizer.state_dict(), model)
        model, state = opt.step(grads, state, model)
        ```

    The next steps are those that torch would take, up to rounding, if `opt` is what
    [`eqopt.interop.torch.from_torch`][] makes of the optimizer, or an optimizer of your
    own that does the same, such as `eqopt.AdamW(schedule, weight_decay=0.01)`. It may be
    in a chain, a mask, a group or an [`eqopt.Scheduled`][]: each array of torch goes
    where the state has one of this kind for the same parameter. Arrays are copied.

    !!! warning

        A state does not say everything. In torch, Adam, AdamW and RAdam have states of
        one kind, so that one is taken for the other without an error. Hyperparameters
        come from `opt`, not from the state.

    **Arguments:**

    - `opt`: the optimizer.
    - `state_dict`: what `optimizer.state_dict()` of torch returned, or the same with
        NumPy's arrays for tensors.
    - `params`: the model.
    - `paths`, `transpose`: which parameter of torch is which one of the model, as for
        [`eqopt.interop.torch.params_from_torch`][], in the order of
        `state_dict["param_groups"]`. Parameters have the shapes of their states.
    - `count`: the steps taken so far, an integer of at least 0. Defaults to what torch
        counted. Its SGD and Muon do not count: then `count` is needed if `opt` has a
        schedule, and is 0 if it has none.

    **Returns:**

    The state, as if `opt` had trained from the first step on. If torch has no state, as
    before the first step, it is `opt.init(params)`.

    **Raises:**

    A `TypeError` if `state_dict` is something else. A `ValueError` that names key paths,
    if it is the state of another optimizer or model, if arrays have other shapes, or more
    digits than the state of `opt`, if torch counted different numbers of steps in one group,
    or none where they are needed, and as [`eqopt.interop.torch.params_from_torch`][]
    does.
    """
    if not isinstance(state_dict, Mapping) or not (
        {"state", "param_groups"} <= state_dict.keys()
    ):
        raise TypeError(
            "state_from_torch: `state_dict` must be what `optimizer.state_dict()` of "
            "torch returned, with `state` and `param_groups`, but is "
            + _said(state_dict)
        )
    groups = state_dict["param_groups"]
    entries = {
        key: {name: array_of(x) for name, x in entry.items() if x is not None}
        for key, entry in state_dict["state"].items()
    }
    entries = {key: entry for key, entry in entries.items() if entry}
    shapes = {key: shape_of(entry) for key, entry in entries.items()}
    given = given_in(groups, shapes)
    where = places("state_from_torch", given, params, paths, transpose)
    converter = Converter(opt, where, entries, groups, count)
    template = opt.init(params)
    is_new = not converter.needs_count(template) if count is None else count == 0
    if not entries and is_new:
        return template
    return converter.converted(template)


def _said(given: Any) -> str:
    if hasattr(given, "state_dict"):
        return "the optimizer. Pass `optimizer.state_dict()`."
    if isinstance(given, Mapping):
        return f"one with the keys {[*given][:5]}. Is it that of the module?"
    return f"a {type(given).__module__}.{type(given).__qualname__}."
