"""Up, along and down, by parts of the run, once or in several cycles."""

import itertools
import math
from collections.abc import Iterable
from typing import Any, Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from .._arguments.checks import check_fields
from .._jax_internals import is_traced
from .._types import RealScalarLike
from ._dtypes import (
    Finite,
    IntScalarLike,
    Steps,
    as_integer,
    as_reals,
    is_integer,
    of_counts,
    real_dtype,
)
from ._join import one_after_the_other
from ._schedule import AbstractSchedule
from ._validation import ascending, is_real
from ._warmup import WarmupStableDecay


class WarmupDecay(AbstractSchedule):
    r"""Up along a straight line, constant, and down, by fractions of the run or by steps.

    In each cycle of $L$ steps, with $t$ counted from its beginning,

    $$s(t) = \begin{cases}
        I + (M - I)\, t / W & t < W \\
        M & W \le t < L - C \\
        \alpha M + (1 - \alpha) M\, f\bigl((t - L + C) / C\bigr) & L - C \le t < L
    \end{cases}$$

    with $I = 0$ and the warm-up of $W$ steps in the first cycle, $I = \alpha M$ and the
    re-warm-up in all others. After the last one, the value stays at $\alpha M$. `shape`
    selects $f$, as in [`eqopt.schedules.WarmupStableDecay`][].

    **An integer is a number of steps, and a float is a fraction**: `warmup=100` takes
    100 steps, `warmup=0.01` a hundredth of the run. Fractions are rounded to whole steps.
    If `total_steps` changes, everything given as a fraction changes with it.

    With the default peak of 1, this is a shape that all groups of parameters can share.
    Multiply it by the peak of each:

    !!! example

        ```python
        shape = eqopt.schedules.WarmupDecay(10_000, warmup=0.01, decay=0.2, alpha=0.1)
        opt = eqopt.Partition(
            {"matrices": eqopt.Muon(0.02 * shape), "rest": eqopt.AdamW(3e-4 * shape)},
            labels,
        )
        ```

    **Arguments:**

    - `total_steps`: an integer or a 0-d integer array of at least 1: the total number of
        steps, with all cycles.
    - `warmup`: the first warm-up, steps or a fraction of `total_steps`. Defaults to 0.
    - `decay`: $C$, steps or a fraction of each cycle. Defaults to `None`, which is the
        whole cycle after the warm-up.
    - `rewarmup`: the warm-up of all cycles but the first, steps or a fraction of each
        cycle. Defaults to 0, which jumps to the peak.
    - `cycles`: the number of cycles of equal length, or a list of where each cycle but
        the first begins, in steps or as fractions of `total_steps`. Defaults to 1.
    - `peak_value`: $M$, a number or a 0-d array. Defaults to 1.
    - `alpha`: $\alpha$, the value at the end of a cycle, relative to the peak. Defaults
        to 0.
    - `shape`: `"cosine"` (the default), `"linear"` or `"1-sqrt"`.

    **Raises:**

    A `ValueError` or `TypeError` if a number of steps or a fraction is out of its range,
    if warm-up and decay do not fit into a cycle, if the beginnings of cycles do not
    ascend, if there is no such `shape`, or if a value is not finite or has axes.
    """

    total_steps: Steps
    warmup: RealScalarLike
    decay: RealScalarLike | None
    rewarmup: RealScalarLike
    cycles: tuple[RealScalarLike, ...]
    peak_value: Finite
    alpha: Finite
    shape: Literal["cosine", "linear", "1-sqrt"] = eqx.field(static=True)

    # Amounts are checked below: with a better message than beartype's.
    def __init__(
        self,
        total_steps: IntScalarLike,
        warmup: Any = 0,
        decay: Any = None,
        rewarmup: Any = 0,
        cycles: int | Iterable[Any] = 1,
        *,
        peak_value: RealScalarLike = 1.0,
        alpha: RealScalarLike = 0.0,
        shape: Literal["cosine", "linear", "1-sqrt"] = "cosine",
    ):
        self.total_steps = total_steps
        self.warmup, self.decay, self.rewarmup = warmup, decay, rewarmup
        self.cycles = _beginnings(cycles)
        self.peak_value, self.alpha, self.shape = peak_value, alpha, shape

    def __check_init__(self) -> None:
        check_fields(self)
        for name in ("warmup", "decay", "rewarmup"):
            if name != "decay" or self.decay is not None:
                _check_amount(name, getattr(self, name))
        for i, beginning in enumerate(self.cycles):
            _check_amount(f"cycles[{i}]", beginning)
        starts = self._starts()
        if not ascending(*starts, self.total_steps):
            raise ValueError(
                "WarmupDecay: `cycles` must ascend, above 0 and below `total_steps`, "
                f"which is {self.total_steps}, but the cycles begin at steps {starts}. "
                "List where each cycle but the first begins, not the lengths."
            )
        for i, (length, warmup, decay) in enumerate(self._lengths()):
            _check_fits(self, i, length, warmup, decay)

    @of_counts
    def __call__(self, count: IntScalarLike) -> Float[Array, ""]:
        peak, alpha = as_reals(self, "peak_value", "alpha")
        end = alpha * peak
        cycles = tuple(
            WarmupStableDecay(
                end if i else jnp.zeros_like(peak),
                peak,
                warmup,
                length,
                _clipped(decay, length - warmup),
                end,
                self.shape,
            )
            for i, (length, warmup, decay) in enumerate(self._lengths())
        )
        return one_after_the_other(self, cycles, self._starts()[1:], count)

    def _starts(self) -> list[Any]:
        return [0, *(_steps(x, _whole(self.total_steps)) for x in self.cycles)]

    def _lengths(self) -> list[tuple[Any, Any, Any]]:
        """The lengths of each cycle, of its warm-up and of its decay."""
        lengths = []
        total = _whole(self.total_steps)
        ends = [*self._starts(), total]
        for i, (start, end) in enumerate(itertools.pairwise(ends)):
            length = end - start
            warmup = _steps(self.rewarmup, length)
            if i == 0:
                warmup = _steps(self.warmup, total)
            decay = length - warmup
            if self.decay is not None:
                decay = _steps(self.decay, length)
            lengths.append((length, warmup, decay))
        return lengths


def _beginnings(cycles: Any) -> tuple[Any, ...]:
    """Where each cycle but the first begins."""
    is_list = not hasattr(cycles, "ndim") or cycles.ndim == 1
    if is_list and isinstance(cycles, Iterable):
        return tuple(cycles)
    if not is_integer(cycles) or is_traced(cycles) or int(cycles) < 1:
        raise ValueError(
            "WarmupDecay: `cycles` must be the number of cycles, an integer of at least "
            f"1, or a list of where each cycle but the first begins, but is {cycles!r}."
        )
    return tuple(i / int(cycles) for i in range(1, int(cycles)))


def _check_amount(name: str, value: Any) -> None:
    is_fraction = is_real(value) and not isinstance(value, bool)
    low, high = (0, math.inf) if is_fraction and is_integer(value) else (0, 1)
    # In NumPy, because comparing JAX arrays would be traced under `jit`.
    if not is_fraction or not (is_traced(value) or low <= np.asarray(value) <= high):
        raise ValueError(
            f"WarmupDecay: `{name}` must be a number of steps, an integer of at least "
            f"0, or a fraction, a float from 0 to 1, but is {value!r}. A number of "
            "steps has no decimal point: write `1000` or `0.01`."
        )


def _check_fits(
    owner: WarmupDecay, i: int, length: Any, warmup: Any, decay: Any
) -> None:
    if any(map(is_traced, (length, warmup, decay))):
        return
    # Two fractions may both be rounded up.
    slack = not all(map(is_integer, (owner.warmup, owner.decay, owner.rewarmup)))
    length, warmup, decay = int(length), int(warmup), int(decay)
    if warmup > length or warmup + decay > length + slack:
        name = "rewarmup" if i else "warmup"
        raise ValueError(
            f"WarmupDecay: `{name}` and `decay` must be at most a cycle long together, "
            f"but are {warmup} and {max(decay, 0)} steps in cycle {i}, which has "
            f"{length}. Shorten one of them, or use fewer `cycles`."
        )


def _steps(amount: Any, whole: Any) -> Any:
    """A number of steps, or a fraction of the steps of a whole, rounded."""
    if is_integer(amount):
        return _whole(amount)
    if not isinstance(amount, Array) and not isinstance(whole, Array):
        return math.floor(float(amount) * whole + 0.5)
    dtype = real_dtype()
    steps = jnp.asarray(amount, dtype) * jnp.asarray(whole).astype(dtype)
    # Rounding has no derivative.
    return jnp.floor(steps + 0.5).astype(int)


def _whole(steps: Any) -> Any:
    """A number of steps as a Python integer, or in the dtype of the count."""
    return as_integer(steps) if isinstance(steps, Array) else int(steps)


def _clipped(decay: Any, room: Any) -> Any:
    if isinstance(decay, Array) or isinstance(room, Array):
        return jnp.clip(decay, 0, jnp.maximum(room, 0))
    return max(0, min(decay, room))
