"""Smaller steps once the loss does not get smaller."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._checks import check_count, check_range, required_value
from .._equations import compute_dtype
from .._leaves import parameters
from .._pipeline import Leafwise
from .._transformation import AbstractLeafwise
from .._types import Hyperparameter, Params
from .scale import scale


class ReduceLROnPlateauState(eqx.Module):
    """How the loss has been doing.

    **Attributes:**

    - `scale`: what the updates are multiplied by.
    - `best_value`: the smallest loss that counted as an improvement.
    - `plateau_count`: how many losses in a row have been no improvement on it.
    - `cooldown_count`: how many losses are still not to count after a reduction.
    - `count`: how many values make up `avg_value`.
    - `avg_value`: the mean of the values since the last loss was complete.

    Counts are 0-d int32 arrays, the others 0-d arrays of at least float32.
    """

    scale: Float[Array, ""]
    best_value: Float[Array, ""]
    plateau_count: Int[Array, ""]
    cooldown_count: Int[Array, ""]
    count: Int[Array, ""]
    avg_value: Float[Array, ""]


class ReduceLROnPlateau(AbstractLeafwise):
    r"""Scales updates down when the loss has stopped getting smaller.

    A loss $l$ is an improvement on the best one so far, $b$, if

    $$l < b - (r\,|b| + a).$$

    After `patience` losses in a row that are none, the scale is multiplied by `factor`.
    The following `cooldown` losses do not count. Put it behind an optimizer:

    !!! example

        ```python
        opt = eqopt.Chain(eqopt.Adam(1e-3), eqopt.ReduceLROnPlateau(patience=5))
        model, state = opt.step(grads, state, model, value=loss)
        eqopt.tree.get(state, "ReduceLROnPlateauState").scale
        ```

    `update` and `step` need the extra argument `value`, which is the loss. They look at
    it in every step, not once in an epoch: for the noisy losses of mini-batches, choose
    an `accumulation_size`.

    `torch.optim.lr_scheduler.ReduceLROnPlateau` reduces one loss later: its `patience=p`
    is `p + 1` here.

    **Arguments:**

    - `factor`: in $(0, 1)$.
    - `patience`: an integer of at least 1.
    - `rtol`: $r \in [0, 1]$, the relative tolerance.
    - `atol`: $a \ge 0$, the absolute tolerance.
    - `cooldown`: an integer of at least 0.
    - `accumulation_size`: how many values make up a loss, which is their mean; an
        integer of at least 1.
    - `min_scale`: in $[0, 1]$, the smallest scale.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range; in `update`, if there is no
    `value`.
    """

    factor: Hyperparameter = 0.1
    patience: int | Int[Array, ""] = 10
    rtol: Hyperparameter = 1e-4
    atol: Hyperparameter = 0.0
    cooldown: int | Int[Array, ""] = 0
    accumulation_size: int | Int[Array, ""] = 1
    min_scale: Hyperparameter = 0.0

    def __check_init__(self):
        check_range(self, "factor", 0, 1, includes_low=False)
        for name in ("rtol", "min_scale"):
            check_range(self, name, 0, 1, includes_high=True)
        check_range(self, "atol", 0)
        for name, low in (("patience", 1), ("cooldown", 0), ("accumulation_size", 1)):
            check_count(self, name, low)

    def init(self, params: Params) -> ReduceLROnPlateauState:
        dtype = compute_dtype(parameters(params))
        return ReduceLROnPlateauState(
            scale=jnp.ones((), dtype),
            best_value=jnp.full((), jnp.inf, dtype),
            plateau_count=jnp.zeros((), jnp.int32),
            cooldown_count=jnp.zeros((), jnp.int32),
            count=jnp.zeros((), jnp.int32),
            avg_value=jnp.zeros((), dtype),
        )

    def leafwise(
        self,
        state: ReduceLROnPlateauState,
        params: Params | None = None,
        **extra: Any,
    ) -> Leafwise:
        value = jnp.asarray(required_value(self, extra)).astype(state.avg_value.dtype)
        count = state.count + 1
        with jax.numpy_dtype_promotion("standard"):  # of hyperparameters of any dtype
            mean = (state.count * state.avg_value + value) / count
            is_complete = count >= self.accumulation_size
            judged = self._judge(state, mean)
        waiting = {**vars(state), "count": count, "avg_value": mean}
        new = {
            name: jnp.where(is_complete, judged[name], waiting[name]).astype(old.dtype)
            for name, old in vars(state).items()
        }
        return Leafwise(
            scale, ReduceLROnPlateauState(**new), {"step_size": new["scale"]}
        )

    def _judge(self, state: ReduceLROnPlateauState, loss: Array) -> dict[str, Any]:
        """The state after a whole loss."""
        best = state.best_value
        # Differs from Optax in: `rtol` is relative to |best|. By `(1 - rtol) * best` the
        # bar for a negative best is above it, so that no loss is ever a bad one.
        finite = jnp.where(jnp.isfinite(best), best, 0)
        own: Any = self
        bar = best - (own.rtol * jnp.abs(finite) + own.atol)
        is_better, is_cooling = loss < bar, state.cooldown_count > 0
        bad = jnp.where(is_better | is_cooling, 0, state.plateau_count + 1)
        reduces = bad >= self.patience
        smaller = jnp.maximum(own.factor * state.scale, own.min_scale)
        cooling = jnp.where(is_cooling, state.cooldown_count - 1, 0)
        return {
            "scale": jnp.where(reduces, smaller, state.scale),
            "best_value": jnp.where(is_better, loss, best),
            "plateau_count": jnp.where(reduces, 0, bad),
            "cooldown_count": jnp.where(reduces, self.cooldown, cooling),
            "count": 0,
            "avg_value": 0,
        }
