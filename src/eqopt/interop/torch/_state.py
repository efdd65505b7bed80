"""Continues a training run of torch."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..._core import AbstractTransformation
from ..._errors import InputError
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
    """The state with which `opt` continues a training run that torch started.

    !!! example

        ```python
        from eqopt.interop.torch import from_torch, params_from_torch, state_from_torch

        model = params_from_torch(network.parameters(), model)
        opt = from_torch(optimizer)
        state = state_from_torch(opt, optimizer.state_dict(), model)
        model, state = opt.step(grads, state, model)
        ```

    The next steps equal torch's up to rounding, if `opt` is the result of
    [`eqopt.interop.torch.from_torch`][] for the optimizer, or an equivalent optimizer
    of your own, such as `eqopt.AdamW(schedule, weight_decay=0.01)`. It may be in a
    chain, a mask, a group or an [`eqopt.Scheduled`][]: each array of torch replaces the
    array of the same kind for the same parameter. Arrays are copied.

    !!! warning

        A state does not identify its optimizer completely. In torch, Adam, AdamW and
        RAdam have states of the same kind, so confusing them raises no error. The
        hyperparameters in `state_dict` are ignored: `opt` has its own.

    **Arguments:**

    - `opt`: the optimizer.
    - `state_dict`: the result of `optimizer.state_dict()` of torch, or the same with
        NumPy arrays instead of tensors.
    - `params`: the model.
    - `paths`, `transpose`: how torch's parameters correspond to the parameters of the
        model, as in [`eqopt.interop.torch.params_from_torch`][], in the order of
        `state_dict["param_groups"]`. Shapes are read from the state.
    - `count`: the number of steps taken so far, an integer of at least 0. Defaults to
        torch's count. SGD and Muon in torch do not count steps: for them, `count` is
        required if `opt` has a schedule, and defaults to 0 otherwise.

    **Returns:**

    The state, as if `opt` had trained from the first step. If torch has no state yet,
    because no step was taken, this is `opt.init(params)`.

    **Raises:**

    A `TypeError` if `state_dict` is something else. A `ValueError` that names key paths
    if it is the state of another optimizer or model, if arrays have other shapes, or
    more digits than the state of `opt`, if torch counted different numbers of steps in
    one group, if a count is needed and torch has none, and in the same cases as for
    [`eqopt.interop.torch.params_from_torch`][].
    """
    if not isinstance(state_dict, Mapping) or not (
        {"state", "param_groups"} <= state_dict.keys()
    ):
        raise InputError(
            "state_from_torch",
            "`state_dict` must be the result of `optimizer.state_dict()` of torch, with "
            f"`state` and `param_groups`, but is a {type(state_dict).__name__}.",
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
    template = opt.init(params)
    converter = Converter(opt, template, where, entries, groups, count)
    is_new = not converter.needs_count if count is None else count == 0
    if not entries and is_new:
        return template
    return converter.converted()
