"""Smaller steps once the loss stops decreasing."""

from typing import Any

import equinox as eqx
from jaxtyping import Array, Float, Int

from .._arguments.extra import check_number
from .._core import AbstractLeafwise, Leafwise
from .._trees.leaves import parameters
from .._trees.precision import compute_dtype
from .._types import (
    ClosedUnit,
    Count,
    CountOrZero,
    OpenUnit,
    Params,
    RealScalarLike,
    ZeroOrMore,
)
from ..schedules._plateau import after_one_more, no_losses_yet
from .scale import scale


class ReduceLROnPlateauState(eqx.Module):
    """The scale, and the recent history of the loss.

    **Attributes:**

    - `scale`: the factor of the updates.
    - `best_value`: the smallest loss that counted as an improvement.
    - `plateau_count`: the number of consecutive losses without an improvement on it.
    - `cooldown_count`: the number of losses that will still not count after a
        reduction.
    - `count`: the number of values in `avg_value`.
    - `avg_value`: the mean of the values since the last complete loss.

    Counts are 0-d int32 arrays, the others 0-d arrays of at least float32.
    """

    scale: Float[Array, ""]
    best_value: Float[Array, ""]
    plateau_count: Int[Array, ""]
    cooldown_count: Int[Array, ""]
    count: Int[Array, ""]
    avg_value: Float[Array, ""]


class ReduceLROnPlateau(AbstractLeafwise):
    r"""Scales updates down when the loss stops decreasing.

    A loss $l$ is an improvement on the best one so far, $b$, if

    $$l < b - (r\,|b| + a).$$

    After `patience` consecutive losses without an improvement, the scale is multiplied
    by `factor`. The following `cooldown` losses do not count. Put it after an
    optimizer:

    !!! example

        ```python
        opt = eqopt.Chain(eqopt.Adam(1e-3), eqopt.ReduceLROnPlateau(patience=5))
        model, state = opt.step(grads, state, model, value=loss)
        eqopt.tree.get(state, "ReduceLROnPlateauState").scale
        ```

    `update` and `step` need the extra argument `value`, which is the loss. They use it
    in every step, not once per epoch: for the noisy losses of mini-batches, set an
    `accumulation_size`.

    `torch.optim.lr_scheduler.ReduceLROnPlateau` reduces one loss later: for its
    `patience=p`, use `p + 1` here.

    **Arguments:**

    - `factor`: the factor of a reduction, in $(0, 1)$. Defaults to 0.1.
    - `patience`: the number of losses without improvement before a reduction, an
        integer of at least 1. Defaults to 10.
    - `rtol`: $r \in [0, 1]$, the relative tolerance. Defaults to 0.0001.
    - `atol`: $a \ge 0$, the absolute tolerance. Defaults to 0.0.
    - `cooldown`: the number of losses after a reduction that do not count, an integer
        of at least 0. Defaults to 0.
    - `accumulation_size`: the number of values whose mean counts as one loss, an
        integer of at least 1. Defaults to 1.
    - `min_scale`: the smallest scale, in $[0, 1]$. Defaults to 0.0.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range, and in `update` if `value`
    is missing.
    """

    factor: OpenUnit = 0.1
    patience: Count = 10
    rtol: ClosedUnit = 1e-4
    atol: ZeroOrMore = 0.0
    cooldown: CountOrZero = 0
    accumulation_size: Count = 1
    min_scale: ClosedUnit = 0.0

    def init(self, params: Params) -> ReduceLROnPlateauState:
        dtype = compute_dtype(parameters(params))
        return ReduceLROnPlateauState(**no_losses_yet(dtype))

    def leafwise(
        self,
        state: ReduceLROnPlateauState,
        params: Params | None = None,
        *,
        value: RealScalarLike,
        **extra: Any,
    ) -> Leafwise:
        check_number(self, "value", value)
        new = after_one_more(self, state, value)
        return Leafwise(
            scale, ReduceLROnPlateauState(**new), {"step_size": new["scale"]}
        )
