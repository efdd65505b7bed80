"""Rules that select steps to skip by the loss and the gradient norm."""

import abc
from typing import Annotated, Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._arguments.checks import check_no_schedule
from .._arguments.construction import Module
from .._arguments.fields import static_choice
from .._transforms.history import check_window, is_known, present, remembered
from .._types import AtLeast, IntegerLike, Scalar, State, ZeroOrMore


class AbstractSkipRule(Module):
    """A rule that selects the steps that [`eqopt.SkipStep`][] skips.

    Subclass it and implement `init` and `__call__`. If the rule needs no memory, a
    function of the loss and the norm is enough.
    """

    @abc.abstractmethod
    def init(self) -> State:
        """The memory of the rule before the first step: any tree of arrays."""

    @abc.abstractmethod
    def __call__(
        self, value: Scalar | None, norm: Scalar, state: State
    ) -> tuple[Bool[Array, ""], State]:
        """Whether to skip a step, and the memory after it.

        **Arguments:**

        - `value`: the loss; `None` if the extra argument `value` is not given.
        - `norm`: the global norm of the gradients.
        - `state`: the memory that `init` or the last call returned.
        """


class SigmaRuleState(eqx.Module):
    """Ring buffers of the last losses and norms.

    **Attributes:**

    - `values`: the losses, a float32 array of shape `(window,)`.
    - `value_count`: the number of losses so far, a 0-d int32 array. The next one is
        stored at index `value_count % window`.
    - `norms`, `norm_count`: the same for the norms of the gradients.
    """

    values: Float[Array, " window"]
    value_count: Int[Array, ""]
    norms: Float[Array, " window"]
    norm_count: Int[Array, ""]


class SigmaRule(AbstractSkipRule):
    r"""Skips steps whose loss or gradient norm is far above the previous ones.

    A step is skipped if, for the loss or the norm $x_t$,

    $$x_t > m + \sigma s$$

    where $m$ and $s$ are the mean and the standard deviation (with $n - 1$ in the
    denominator) of the last $n \le$ `window` values. A step with a NaN or infinite loss
    or norm is always skipped, and the value is not remembered.

    Finite values are remembered even if their step is skipped. So a lasting rise, for
    example after a change of the data or of the loss, is accepted after a few steps:
    $k$ values of a new level among $n$ count as large only while
    $(n - k)\,(n - 1) / (n k) > \sigma^2$. With the defaults, these are the first 4
    steps. If the values were not remembered, all later steps could be skipped. The
    price is that fewer values count as large until such a value has left the window.

    Losses are used if you pass `value` to `step`. The comparison needs no absolute
    scale: multiplying all losses and norms by a number changes nothing.

    **Arguments:**

    - `window`: the number of previous values to compare with, an integer of at least 2;
        static. Defaults to 128.
    - `sigma`: $\sigma \ge 0$. Defaults to 6.0.
    - `min_history`: the number of losses or norms that must be known before one can
        count as large, an integer from 2 to `window`. Defaults to half of `window`, at
        least 2.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range.

    ??? cite "Reference"

        ```bibtex
        @article{olmo2024furious,
            author = {{Team OLMo} and Walsh, Pete and Soldaini, Luca and Groeneveld, Dirk
                      and Lo, Kyle and others},
            title = {2 {OLMo} 2 Furious},
            journal = {arXiv preprint arXiv:2501.00656},
            year = {2024},
        }
        ```
    """

    window: Annotated[int, AtLeast(2)] = static_choice(static=True, default=128)
    sigma: ZeroOrMore = 6.0
    min_history: Annotated[IntegerLike, AtLeast(2)] | None = None

    def __check_init__(self) -> None:
        check_window(self)

    def init(self) -> SigmaRuleState:
        check_no_schedule(self)
        zeros = lambda: jnp.zeros(self.window, jnp.float32)  # each in its own buffer
        zero = lambda: jnp.zeros((), jnp.int32)
        return SigmaRuleState(zeros(), zero(), zeros(), zero())

    def __call__(
        self, value: Scalar | None, norm: Scalar, state: State
    ) -> tuple[Bool[Array, ""], SigmaRuleState]:
        skip, *seen = self._judge(norm, state.norms, state.norm_count)
        values = state.values, state.value_count
        if value is not None:
            is_large, *values = self._judge(value, *values)
            skip = skip | is_large
        return skip, SigmaRuleState(*values, *seen)

    def _judge(self, x: Array, history: Array, count: Array) -> tuple[Array, ...]:
        """Whether `x` should be skipped, and the history that includes it."""
        x = x.astype(jnp.float32)
        is_there, n = present(count, self.window)
        # Relative to `x`, not to zero: for equal values, the differences are exactly
        # zero, so a rounded mean cannot make a value count as large.
        distances = jnp.where(is_there, x / 2 - history / 2, 0)
        # Divided by the largest, so that no square overflows.
        largest = jnp.max(jnp.abs(distances))
        distances = distances / jnp.where(largest > 0, largest, 1)
        mean = jnp.sum(distances) / n
        spread = jnp.sum(jnp.where(is_there, (distances - mean) ** 2, 0)) / (n - 1)
        sigma: Any = jnp.asarray(self.sigma).astype(jnp.float32)
        is_large = mean > sigma * jnp.sqrt(spread)
        skip = ~jnp.isfinite(x) | (is_large & is_known(self, count))
        return skip, *remembered(x, history, count)
