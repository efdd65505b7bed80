"""The diagonal of the empirical Fisher information: squares of gradients."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .._errors import InputError
from .._trees.leaves import map_parameters
from .._types import Params, PyTree, StaticInteger, Updates
from ..microbatching import AccumulationType, micro_vmap
from ..numerics._numerics import abs_sq, at_least_float32
from ._loss import loss_of_arrays


def fisher_diag(
    negative_log_likelihood: Callable[..., Any],
    params: Params,
    *args: Any,
    per_example: bool = False,
    microbatch_size: StaticInteger | None = None,
) -> Updates:
    r"""The diagonal of the observed, or empirical, Fisher information.

    With $\ell(p, x) = -\log \Pr(x \mid p)$ it is

    $$F = \nabla \ell(p, x)^2 \qquad\text{or}\qquad
      F = \frac1B \sum_{b=1}^B \nabla \ell(p, x_b)^2,$$

    by default the first, with `per_example=True` the second. The first is correct for
    one observation $x$. If $\ell$ is the mean over a batch, the first is the square of
    a mean, which vanishes at the minimum; the second is the mean of the squares.

    The first costs one gradient. The second takes the time of one gradient of the
    batch, and the memory for the gradients of `microbatch_size` examples.

    !!! example

        ```python
        fisher = eqopt.second_order.fisher_diag(
            nll_of_one_example, model, x, y, per_example=True, microbatch_size=16
        )
        ```

    **Arguments:**

    - `negative_log_likelihood`: $\ell$, a function of `params` and `args` that returns
        a real number. With `per_example`, it is a function of one example of `args`.
    - `params`: $p$, a whole model or any other tree. Its inexact arrays are the
        parameters; all other leaves stay unchanged.
    - `args`: the observation $x$, or a batch in which every array has the examples
        along its first axis.
    - `per_example`: whether to take the mean over the examples. Defaults to `False`.
    - `microbatch_size`: the number of examples to process at a time, at least 1, for
        `per_example`. Defaults to `None`, which means all of them.

    **Returns:**

    A tree like the gradient: arrays with shapes and dtypes of the parameters, and `None`
    for all other leaves. Squares and means are computed in at least float32. For a
    complex parameter $x + iy$ it is the mean of the entries for $x$ and for $y$, as a
    complex number.

    **Raises:**

    A `ValueError` if there is no batch for `per_example`, or if its arrays have
    different sizes; if `microbatch_size` is not positive, larger than the batch, or
    given without `per_example`; or if `negative_log_likelihood` does not return a real
    number.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{kunstner2019limitations,
            author = {Kunstner, Frederik and Balles, Lukas and Hennig, Philipp},
            title = {Limitations of the Empirical {F}isher Approximation for Natural
                     Gradient Descent},
            booktitle = {Advances in Neural Information Processing Systems},
            year = {2019},
        }
        ```
    """
    arrays = map_parameters(jnp.asarray, params)

    def squares(*example: Any) -> PyTree:
        value = loss_of_arrays(
            "fisher_diag",
            "negative_log_likelihood",
            negative_log_likelihood,
            params,
            example,
        )
        return jtu.tree_map(_square, jax.grad(value)(arrays))

    if not per_example:
        if microbatch_size is not None:
            raise InputError(
                "fisher_diag",
                f"`microbatch_size` is {microbatch_size}, but without "
                "`per_example=True` there is no batch to divide.",
            )
        return _narrow(squares(*args), arrays)
    is_numpy = lambda x: isinstance(x, np.ndarray | np.generic)
    batch = jtu.tree_map(lambda x: jnp.asarray(x) if is_numpy(x) else x, args)
    mean = micro_vmap(
        squares, microbatch_size=microbatch_size, accumulator=AccumulationType.MEAN
    )
    return _narrow(mean(*batch), arrays)


def _square(g: Any) -> Any:
    # For a complex parameter, this is the mean for the real and imaginary parts.
    wide = abs_sq(at_least_float32(g))
    return wide / 2 if jnp.iscomplexobj(g) else wide


def _narrow(tree: PyTree, arrays: PyTree) -> PyTree:
    return jtu.tree_map(lambda x, p: x.astype(p.dtype), tree, arrays)
