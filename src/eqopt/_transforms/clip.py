"""Bounds updates: each element, or all of them together."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

from .._arguments.checks import check_range
from .._core.equation import equation
from .._core.pipeline import Leafwise
from .._core.transformation import AbstractStateless
from .._types import Hyperparameter, Leaf, Params, Scalar, Updates
from ..tree import norm
from .scale import scale


@equation
def clip(g: Leaf, *, max_delta: Scalar) -> Leaf:
    return by_parts(lambda g: jnp.clip(g, -max_delta, max_delta), g)


def by_parts(fn: Callable, *arrays: Leaf) -> Leaf:
    """A function of real numbers, applied to both parts of complex numbers."""
    if not jnp.iscomplexobj(arrays[0]):
        return fn(*arrays)
    return lax.complex(fn(*(x.real for x in arrays)), fn(*(x.imag for x in arrays)))


class Clip(AbstractStateless):
    r"""Clips each element of the updates to $[-\delta, \delta]$.

    For complex updates, the real and imaginary parts are clipped separately. NaN stays
    NaN.

    **Arguments:**

    - `max_delta`: $\delta \ge 0$.

    **Raises:**

    A `ValueError` if `max_delta` is negative.
    """

    max_delta: Hyperparameter

    def __check_init__(self):
        check_range(self, "max_delta", 0)

    def leafwise(
        self, state: None, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return Leafwise(clip)


class ClipByGlobalNorm(AbstractStateless):
    r"""Scales all updates down together if their global norm is too large.

    $$u = g \cdot \min\left(1, \frac{c}{\|g\|_2}\right), \qquad
      \|g\|_2^2 = \sum_{\text{leaves}} \sum_i |g_i|^2.$$

    Zero updates stay zero, also for $c = 0$. A NaN or an infinity anywhere makes all
    updates NaN. To skip such steps, wrap the optimizer in [`eqopt.ApplyIfFinite`][].
    In float32, the square of a norm above 1.8e19 overflows: then all updates are zero,
    as if the step were skipped.

    **Arguments:**

    - `max_norm`: $c \ge 0$.

    **Raises:**

    A `ValueError` if `max_norm` is negative.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{pascanu2013difficulty,
            author = {Pascanu, Razvan and Mikolov, Tomas and Bengio, Yoshua},
            title = {On the Difficulty of Training Recurrent Neural Networks},
            booktitle = {International Conference on Machine Learning},
            year = {2013},
        }
        ```
    """

    max_norm: Hyperparameter

    def __check_init__(self):
        check_range(self, "max_norm", 0)

    def leafwise(
        self, state: None, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return Leafwise(scale, measure=self._factor)

    def _factor(self, updates: Updates) -> dict[str, Scalar]:
        # A norm that cannot overflow, with a second pass over the gradients in a branch,
        # takes twice as long to trace and to compile (measured with 1000 leaves).
        global_norm = norm(updates)
        max_norm = jnp.asarray(self.max_norm, global_norm.dtype)
        # A scalar factor for the next equation. `where` instead of `minimum` keeps a
        # NaN norm visible. The denominator is 1 if it is not used, so that the
        # derivative is finite.
        exceeds = ~(global_norm <= max_norm)
        denominator = jnp.where(exceeds, global_norm, 1)
        return {"step_size": jnp.where(exceeds, max_norm / denominator, 1)}
