"""The noise scale: a guide to the batch size."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._arguments.checks import check_number_in
from .._arguments.construction import Module
from .._core import equation, sum_over_leaves
from .._errors import InputError
from .._jax_internals import is_traced
from .._types import Interval, Leaf, RealScalarLike, Scalar, Updates
from ..tree import norm


class GradientNoiseScale(Module):
    r"""The two parts of the simple noise scale.

    Average each of them over steps before you divide. Both are unbiased, but the
    quotient of noisy numbers is not, and in a single step `squared_norm` may be
    negative. This object is a tree, so [`eqopt.incremental_update`][] can average it.

    **Attributes:**

    - `trace`: an estimate of $\operatorname{tr} \Sigma$, where $\Sigma$ is the covariance
        of per-example gradients; a 0-d array.
    - `squared_norm`: an estimate of $|G|^2$, where $G$ is the gradient of the loss over
        all data; a 0-d array.
    """

    trace: Float[Array, ""]
    squared_norm: Float[Array, ""]

    @property
    def noise_scale(self) -> Float[Array, ""]:
        r"""$\mathcal B_{\text{simple}} = \operatorname{tr} \Sigma / |G|^2$."""
        return self.trace / self.squared_norm


def gradient_noise_scale(
    mean_grads: Updates,
    batch_size: RealScalarLike,
    *,
    variance_grads: Updates | None = None,
    mean_squared_norm: RealScalarLike | None = None,
    small_batch_size: RealScalarLike = 1,
) -> GradientNoiseScale:
    r"""Computes the simple noise scale from the gradients of one step.

    $$\mathcal B_{\text{simple}} = \frac{\operatorname{tr} \Sigma}{|G|^2}$$

    is about the batch size at which noise and gradient are equally large. Much smaller
    batches need more steps for the same data; much larger batches need more data for
    hardly fewer steps. The noise scale grows during training.

    It requires the mean $\bar g$ of the gradients of $B$ examples, and a measure of
    their differences. With the variance $v$ of per-example gradients, unbiased and
    element by element,

    $$\operatorname{tr} \Sigma \approx \sum_j v_j, \qquad
      |G|^2 \approx |\bar g|^2 - \frac{1}{B} \operatorname{tr} \Sigma.$$

    Or with the mean $q$ of their squared norms $|g_i|^2$,

    $$\operatorname{tr} \Sigma \approx \frac{q - |\bar g|^2}{1 - 1 / B}$$

    and $|G|^2$ in the same way. Both are equal in exact arithmetic; the first keeps
    more digits if there is little noise.

    Instead of examples, you can pass mini-batches of $b$ examples, for example from
    several devices. Then $v$ and $q$ belong to the gradients of the mini-batches, and

    $$\operatorname{tr} \Sigma \approx b \sum_j v_j \quad\text{or}\quad
      \operatorname{tr} \Sigma \approx \frac{q - |\bar g|^2}{1 / b - 1 / B}.$$

    !!! example

        ```python
        new = eqopt.aggregating.gradient_noise_scale(
            mean, 512, mean_squared_norm=jnp.mean(squared_norms)
        )
        average = eqopt.incremental_update(new, average, 0.05)
        average.noise_scale
        ```

    **Arguments:**

    - `mean_grads`: $\bar g$, a tree of arrays or `None`.
    - `batch_size`: $B$, the number of examples that $\bar g$ averages.
    - `variance_grads`: $v$, a tree like `mean_grads`, real also for complex gradients.
    - `mean_squared_norm`: $q$, a real number, if there is no $v$.
    - `small_batch_size`: $b$, which is smaller than $B$.

    **Returns:**

    The two estimates, 0-d arrays of at least float32. They are unbiased.

    **Raises:**

    A `ValueError` unless exactly one of `variance_grads` and `mean_squared_norm` is
    given, if `variance_grads` and `mean_grads` have different structures, if
    `mean_squared_norm` has axes, or unless $0 < b < B$.

    ??? cite "Reference"

        ```bibtex
        @misc{mccandlish2018empirical,
            title = {An Empirical Model of Large-Batch Training},
            author = {McCandlish, Sam and Kaplan, Jared and Amodei, Dario and {OpenAI Dota
                      Team}},
            year = {2018},
            eprint = {1812.06162},
            archivePrefix = {arXiv},
            primaryClass = {cs.LG},
        }
        ```
    """
    if (variance_grads is None) == (mean_squared_norm is None):
        problem = "pass exactly one of `variance_grads` and `mean_squared_norm`."
        raise InputError(problem)
    if not is_traced(batch_size):
        size = np.asarray(batch_size).item()
        inside = Interval(0, size, includes_low=False, includes_high=False)
        check_number_in("small_batch_size", small_batch_size, inside)
    square = norm(mean_grads, squared=True)
    as_array = lambda n: jnp.asarray(n, square.dtype)
    large, small = as_array(batch_size), as_array(small_batch_size)
    if variance_grads is not None:
        reads = {"variance_grads": variance_grads}
        (total,) = sum_over_leaves(sum_of_variances, mean_grads, reads)
        trace = small * total.astype(square.dtype)
    else:
        gap = jnp.asarray(mean_squared_norm, square.dtype) - square
        trace = gap / (1 / small - 1 / large)
    return GradientNoiseScale(trace, square - trace / large)


@equation
def sum_of_variances(g: Leaf, variance_grads: Leaf) -> Scalar:
    return jnp.sum(variance_grads.real)
