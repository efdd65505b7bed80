"""Gradients that workers average in fewer bytes."""

from typing import Any

import equinox as eqx

from .._core import AbstractTransformation, AbstractWrapper, Call, check_real
from .._errors import naming_recipe
from .._types import ClosedUnit, Params, State
from ..compression._compressors import (
    AbstractCompressor,
    Workers,
    compressed,
    memory_like,
)
from ..tree._like import wide_zeros_like
from .averages.copies import check_kept


class CompressedMeanState(eqx.Module):
    """The errors of one worker, and what all workers share.

    **Attributes:**

    - `inner_state`: the inner state, equal for all workers.
    - `error`: what this worker has not sent yet, a tree like the parameters, in at least
        float32.
    - `memory`: what the compressor remembers about each parameter, or `None`; equal for
        all workers.
    """

    inner_state: State
    error: Params
    memory: Params

    @classmethod
    def prefix(cls, own: Any, shared: Any) -> "CompressedMeanState":
        """A prefix of the state, for the arguments of `jax.shard_map` and `jax.vmap`.

        **Arguments:**

        - `own`: the value for everything that differs between workers, such as
            `P("data")` for `in_specs`, or 0 for `in_axes`.
        - `shared`: the value for everything that all workers share: `P()` or `None`.
        """
        return cls(shared, own, shared)


class CompressedMean(AbstractWrapper):
    r"""Averages gradients over workers in fewer bytes, with feedback of the errors.

    In data parallelism, each step averages the gradients $g_k$ of all workers. Here,
    each worker adds its error $e_k$ of the last step to its gradient first. A compressor
    sends a part $c_k$ of the sum, whose mean `inner` gets, and the rest is the new error:

    $$\begin{aligned}
      x_k &= d\, e_k + g_k & \bar c &= \frac1K \sum_k c_k & e_k &\leftarrow x_k - c_k
    \end{aligned}$$

    So with $d = 1$, nothing is lost: at any time, the sum of all means that `inner` got,
    and the mean of the errors, equal the sum of all mean gradients, except for rounding.
    The first reference of [`eqopt.compression.Sign`][] shows that training converges.

    Call `step` for each worker inside `jax.shard_map` or `jax.vmap` over an axis with
    this name, with the gradients of this worker, not averaged. All workers get the same
    parameters. Only the errors differ; [`eqopt.CompressedMeanState.prefix`][] tells JAX
    so. Checkpoints need the errors of all workers.

    Gradients must be finite: an infinite one would stay in the error. Clip gradients and
    skip steps inside, with the mean, or by a decision that is the same for all workers.

    !!! example

        ```python
        compressor = eqopt.compression.PowerSGD(4)
        opt = eqopt.CompressedMean(eqopt.SGD(0.1, 0.9), "data", compressor)
        ```

    **Arguments:**

    - `inner`: the optimizer, which gets the means in the dtypes of the gradients.
    - `axis_name`: the name of the axis over which the workers are mapped, or several
        names. `None` means one worker: the gradients are compressed, but not sent.
    - `compressor`: one of [`eqopt.compression`][].
    - `decay`: $d \in [0, 1]$. Defaults to 1.0.

    **Raises:**

    A `ValueError` if `decay` is out of its range; in `step` and `update`, if no axis has
    the name `axis_name`.
    """

    inner: AbstractTransformation
    axis_name: str | tuple[str, ...] | None = eqx.field(static=True)
    compressor: AbstractCompressor
    decay: ClosedUnit = 1.0

    def init(self, params: Params) -> CompressedMeanState:
        return CompressedMeanState(
            inner_state=self.inner.init(params),
            error=wide_zeros_like(params),
            memory=memory_like(self.compressor, params),
        )

    def handle(self, call: Call, state: CompressedMeanState) -> tuple[Any, State]:
        check_kept("error", state.error, call.updates)
        check_real(call.updates, state.error, "state.error")
        with naming_recipe(self):
            workers = Workers(self.axis_name)
        means, error, memory = compressed(
            self.compressor,
            call.updates,
            state.error,
            state.memory,
            workers,
            self.decay,
        )
        means = call._replace(updates=means)
        result, inner_state = means.run(self.inner, state.inner_state)
        return result, CompressedMeanState(inner_state, error, memory)
