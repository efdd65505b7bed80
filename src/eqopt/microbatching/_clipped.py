"""Norms of per-example gradients, and sums of clipped per-example gradients."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
from jaxtyping import ArrayLike

from .._trees.leaves import label_dict
from .._types import PyTree, StaticInteger
from ._accumulator import AccumulationType
from ._clip_factors import check_clip
from ._clipping import ClippedSum, Groups, Norms, Paths, PerExampleNorms
from ._ghost.gradient import Method, Path
from ._loss import make_loss
from ._rows import check_size


def clipped_grad(
    fun: Callable[..., Any],
    l2_norm_clip: ArrayLike | Mapping[Any, ArrayLike],
    has_aux: bool = False,
    argnums: int | Sequence[int] = 0,
    *,
    batch_argnums: int | Sequence[int] = 1,
    keep_batch_dim: bool = True,
    microbatch_size: StaticInteger | None = None,
    accumulator: AccumulationType = AccumulationType.SUM,
    groups: Groups | None = None,
    weights: ArrayLike | None = None,
    method: Method = "auto",
    num_real_microbatches: ArrayLike | None = None,
) -> Callable[..., tuple[PyTree, PerExampleNorms]]:
    r"""Sums the clipped gradients of all examples.

    $$\sum_i w_i\, g_i \cdot \min\left(1, \frac{C}{\|g_i\|_2}\right)$$

    It costs little more than the gradient of the sum, and most $g_i$ are never
    computed. If a matrix $W$ multiplies the rows $x_t$ of an example, and $y_t$ are the
    gradients with respect to the products, both the norm of $\sum_t x_t y_t^T$ and the
    sum over examples follow from $x_t$ and $y_t$. For this purpose, the function is
    traced to find the products, convolutions and look-ups of its parameters,
    independently of the layers that contain them: see
    [`eqopt.microbatching.gradient_paths`][].

    !!! example

        ```python
        from eqopt.microbatching import clipped_grad

        def loss_fn(model, x, y):
            return jnp.mean((jax.vmap(model)(x) - y) ** 2)

        grad_fn = eqx.filter_jit(clipped_grad(loss_fn, 1.0, batch_argnums=(1, 2)))
        grads, examples = grad_fn(model, x, y)
        examples.norms  # of each gradient, before it was clipped
        ```

    ??? cite "Reference"

        ```bibtex
        @misc{goodfellow2015efficient,
            title={Efficient Per-Example Gradient Computations},
            author={Ian Goodfellow},
            year={2015},
            eprint={1510.01799},
            archivePrefix={arXiv},
        }

        @inproceedings{li2022large,
            title={Large Language Models Can Be Strong Differentially Private Learners},
            author={Xuechen Li and Florian Tram{\`e}r and Percy Liang and Tatsunori
                    Hashimoto},
            booktitle={International Conference on Learning Representations},
            year={2022},
        }

        @inproceedings{bu2023differentially,
            title={Differentially Private Optimization on Large Model at Small Cost},
            author={Zhiqi Bu and Yu-Xiang Wang and Sheng Zha and George Karypis},
            booktitle={International Conference on Machine Learning},
            year={2023},
        }
        ```

    **Arguments:**

    - `fun`, `has_aux`, `argnums`, `batch_argnums`, `keep_batch_dim`: as in
        [`eqopt.microbatching.micro_grad`][]. An argument cannot be both differentiated
        and a batch.
    - `l2_norm_clip`: $C \ge 0$. With `groups`, a dictionary with a bound for each
        label, or one bound for each of them. In float32, an example with a norm above
        1.8e19, whose square overflows, adds nothing.
    - `microbatch_size`: the number of examples per microbatch. It need not divide the
        number of examples. Defaults to `None`: all examples at once.
    - `accumulator`: `SUM`; or `MEAN`, which divides by $\sum_i w_i$; or `RUNNING_MEAN`,
        which excludes the microbatches that `num_real_microbatches` omits from this
        sum. Defaults to `SUM`.
    - `groups`: labels of the parameters, as in [`eqopt.Partition`][]. If given, each
        norm is over the part of the gradient with the same label, and each part is
        clipped by its own norm. So an example contributes up to the root of the sum of
        the squares of all bounds, which is $C \sqrt K$ for $K$ groups with one bound:
        for privacy, pass this as the `l2_norm_clip` of [`eqopt.DPSGD`][].
    - `weights`: $w_i$, an array with one number per example. Use zero for padding: such
        an example contributes nothing, whatever its values. An example with weight
        $w_i$ contributes up to $w_i C$: for privacy, multiply the `l2_norm_clip` of
        [`eqopt.DPSGD`][] by the largest weight that an example can have. Defaults to 1.
    - `method`: `"auto"`; or `"ghost"`, which raises an error if `"auto"` would compute
        large per-example gradients; or `"per_example"`, which computes all per-example
        gradients. They agree up to rounding. If the rows of an example nearly cancel,
        the rounding error is large: then `norms` are estimates, and the example is
        clipped by an upper bound on its norm. With `"per_example"`, it keeps more of
        its gradient.
    - `num_real_microbatches`: as in [`eqopt.microbatching.microbatch`][].

    **Returns:**

    A function with the arguments of `fun` that returns `(gradient, examples)`.
    `gradient` is like the result of `eqx.filter_grad`, but in float32 for parameters of
    lower precision, because noise must be added before a sum is rounded. `examples` is
    a named tuple with the fields `values`, `norms` and `aux`. Clipping does not hide
    NaN or infinite gradients: they make the sum NaN, unless their weight is zero. A
    finite gradient whose norm overflows adds nothing. Inside `jax.shard_map`, the sum
    is over the examples of each device: add these sums with `jax.lax.psum`.

    **Raises:**

    The `ValueError`s of [`eqopt.microbatching.micro_grad`][]. Also a `ValueError` if an
    argument is both differentiated and a batch, if `l2_norm_clip` is negative or does
    not fit `groups`, if `groups` has no label for a parameter, or if `fun` returns an
    `eqx.nn.State`, which mixes the examples. With `method="ghost"`, a `ValueError` that
    lists the parameters for which it is not possible.
    """
    if accumulator is AccumulationType.CONCAT:
        raise ValueError(
            "`accumulator` is CONCAT, but `clipped_grad` does not compute per-example "
            "gradients that could be concatenated. Use SUM or MEAN, or `micro_grad`."
        )
    check_clip(l2_norm_clip, groups)
    size = check_size(microbatch_size)
    loss = make_loss(fun, has_aux, argnums, batch_argnums, keep_batch_dim)
    out = ClippedSum(
        Norms(loss, size, groups, method),
        label_dict(l2_norm_clip) if isinstance(l2_norm_clip, dict) else l2_norm_clip,
        accumulator,
        weights,
        num_real_microbatches,
    )
    return eqx.module_update_wrapper(out)


def per_example_grad_norms(
    fun: Callable[..., Any],
    has_aux: bool = False,
    argnums: int | Sequence[int] = 0,
    *,
    batch_argnums: int | Sequence[int] = 1,
    keep_batch_dim: bool = True,
    microbatch_size: StaticInteger | None = None,
    groups: Groups | None = None,
    method: Method = "auto",
) -> Callable[..., PerExampleNorms]:
    """The norm of the gradient of each example, without computing the gradients.

    Use the norms to find outliers and wrong labels, to select data, or to compute the
    noise scale of gradients: see [`eqopt.aggregating.gradient_noise_scale`][].

    !!! example

        ```python
        from eqopt.microbatching import per_example_grad_norms

        norms = eqx.filter_jit(per_example_grad_norms(loss_fn))(model, batch).norms
        ```

    **Arguments:**

    The same as for [`eqopt.microbatching.clipped_grad`][].

    **Returns:**

    A function with the arguments of `fun` that returns a named tuple with the fields
    `values`, `norms` and `aux`, all with one entry per example along axis 0.

    **Raises:**

    The `ValueError`s of [`eqopt.microbatching.clipped_grad`][].
    """
    size = check_size(microbatch_size)
    loss = make_loss(fun, has_aux, argnums, batch_argnums, keep_batch_dim)
    return eqx.module_update_wrapper(Norms(loss, size, groups, method))


def gradient_paths(
    fun: Callable[..., Any],
    has_aux: bool = False,
    argnums: int | Sequence[int] = 0,
    *,
    batch_argnums: int | Sequence[int] = 1,
    keep_batch_dim: bool = True,
) -> Callable[..., PyTree[Path]]:
    """How `clipped_grad` computes the norm for each parameter.

    - `"ghost"`: the parameter is only used as a factor of matrix products, as the
        kernel of convolutions, or as a look-up table. The norm follows from the other
        factors, without per-example gradients, or from the per-example gradients if
        these are smaller.
    - `"direct"`: per-example gradients are computed. They are at most as large as the
        values that the parameter is combined with, for example for biases and for
        scales of normalisation layers.
    - `"per_example"`: per-example gradients are computed, and are larger. Choose the
        microbatch size so that the gradients of one microbatch fit into memory. Reasons
        are loops over a parameter, such as `scan`, custom derivatives, penalties, and
        any other operation on a parameter before it is used.
    - `"unused"`: the function does not depend on it.

    !!! example

        ```python
        from eqopt.microbatching import gradient_paths

        paths = gradient_paths(loss_fn)(model, batch)
        print(eqopt.groups.table(paths, model))
        ```

    **Arguments:**

    The same as for [`eqopt.microbatching.clipped_grad`][].

    **Returns:**

    A function with the arguments of `fun` that computes nothing and returns a tree like
    the gradient with one of these strings for each parameter. Under
    `eqx.filter_eval_shape`, shapes and dtypes of the arguments are enough.

    **Raises:**

    The `ValueError`s of [`eqopt.microbatching.clipped_grad`][].
    """
    loss = make_loss(fun, has_aux, argnums, batch_argnums, keep_batch_dim)
    return eqx.module_update_wrapper(Paths(loss))
