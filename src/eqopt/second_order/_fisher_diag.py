"""The diagonal of the empirical Fisher information: squares of gradients."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree

from .._leaves import parameters
from .._types import Params, StaticInteger, Updates
from ..microbatching import AccumulationType, micro_vmap
from ..numerics import abs_sq, at_least_float32
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

    by default the first, with `per_example=True` the second. The first one is right for
    one observation $x$. If $\ell$ is the mean over a batch, the first one is the square
    of a mean, which vanishes at the minimum; the second one is the mean of the squares.

    The first costs one gradient. The second takes the time of one gradient of the
    batch, and the memory for the gradients of `microbatch_size` examples.

    !!! example

        ```python
        fisher = eqopt.second_order.fisher_diag(
            nll_of_one_example, model, x, y, per_example=True, microbatch_size=16
        )
        ```

    **Arguments:**

    - `negative_log_likelihood`: $\ell$, a function of `params` and `args` whose value is
        one real number; of one example of `args`, if `per_example`.
    - `params`: $p$, a whole model or any other tree. Its inexact arrays are the
        parameters; all other leaves stay unchanged.
    - `args`: the observation $x$, or the batch, every array of which has the examples
        along its first axis.
    - `per_example`: whether to take the mean over the examples. Defaults to `False`.
    - `microbatch_size`: how many examples are treated at a time, at least 1, if
        `per_example`. Defaults to `None`, which is all of them.

    **Returns:**

    A tree like the gradient: arrays with shapes and dtypes of the parameters, and `None`
    for all other leaves. Squares and means are computed in at least float32. For a
    complex parameter $x + iy$ it is the mean of the entries for $x$ and for $y$, as a
    complex number.

    **Raises:**

    A `ValueError` if `per_example` has no batch, or one of unequal sizes, if
    `microbatch_size` is not positive, larger than the batch, or without `per_example`, or
    if `negative_log_likelihood` returns anything other than one real number.

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
    arrays = parameters(params)

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
            raise ValueError(
                f"fisher_diag: `microbatch_size` is {microbatch_size}, but "
                "`per_example` is False, so that there is no batch. Pass "
                "`per_example=True` and the negative log-likelihood of one example."
            )
        return _narrow(squares(*args), arrays)
    batch = jtu.tree_map(lambda x: jnp.asarray(x) if _is_numpy(x) else x, args)
    if not any(map(eqx.is_array, jtu.tree_leaves(batch))):
        raise ValueError(
            "fisher_diag: `per_example=True` needs a batch, but there is no array in "
            f"`args`, which are {args!r}. Pass arrays with the examples along the first "
            "axis after `params`."
        )
    mean = micro_vmap(
        squares, microbatch_size=microbatch_size, accumulator=AccumulationType.MEAN
    )
    return _narrow(mean(*batch), arrays)


def _is_numpy(x: Any) -> bool:
    return isinstance(x, np.ndarray | np.generic)


def _square(g: Any) -> Any:
    # For a complex parameter this is the mean for real and imaginary part.
    wide = abs_sq(at_least_float32(g))
    return wide / 2 if jnp.iscomplexobj(g) else wide


def _narrow(tree: PyTree, arrays: PyTree) -> PyTree:
    return jtu.tree_map(lambda x, p: x.astype(p.dtype), tree, arrays)
