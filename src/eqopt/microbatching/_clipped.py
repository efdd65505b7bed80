"""Norms of per-example gradients, and sums of clipped per-example gradients."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, ArrayLike

from .._arguments.checks import check_number_in
from .._errors import InputError
from .._trees.leaves import is_label, label_dict, listed
from .._trees.masks import resolve
from .._types import IntegerLike, Interval, PyTree, StaticInteger
from ..numerics._numerics import safe_sqrt, wide_dtype
from ._accumulator import AccumulationType
from ._batch import Batch, Call, find_batch, wrap
from ._ghost.factors import AbstractFactor, Summand, clip_factors, squared_norm
from ._ghost.gradient import Method, Path, Traced, gradient, trace
from ._microbatch import Loss, find_loss, make_options, map_rows


# How the clipped gradients are combined.
SumOrMean: TypeAlias = Literal[
    AccumulationType.SUM, AccumulationType.MEAN, AccumulationType.RUNNING_MEAN
]

# A tree of labels like the differentiated arguments, a prefix of it, or a function that
# returns one of them, such as the result of `eqopt.groups.label`.
Groups: TypeAlias = PyTree | Callable[[PyTree], PyTree]


class PerExampleNorms(NamedTuple):
    """The results for each example; axis 0 is the batch axis.

    **Attributes:**

    - `values`: the losses.
    - `norms`: the norms of the gradients before clipping, in at least float32: an
        array, or with `groups` a dictionary with an array for each label.
    - `aux`: the second result of the function with `has_aux`.
    """

    values: Any
    norms: Any
    aux: Any


def clipped_grad(
    fun: Callable[..., Any],
    l2_norm_clip: ArrayLike | Mapping[Any, ArrayLike],
    has_aux: bool = False,
    argnums: int | Sequence[int] = 0,
    *,
    batch_argnums: int | Sequence[int] = 1,
    keep_batch_dim: bool = True,
    microbatch_size: StaticInteger | None = None,
    accumulator: SumOrMean = AccumulationType.SUM,
    groups: Groups | None = None,
    weights: ArrayLike | None = None,
    method: Method = "auto",
    num_real_microbatches: IntegerLike | None = None,
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
    if isinstance(l2_norm_clip, Mapping):
        l2_norm_clip = label_dict(dict(l2_norm_clip))
    for x in jtu.tree_leaves(l2_norm_clip):
        check_number_in("l2_norm_clip", x, Interval(0))
    options = make_options(microbatch_size, accumulator, weights, num_real_microbatches)
    of_loss = has_aux, argnums, batch_argnums, keep_batch_dim
    arguments = of_loss, groups, method, l2_norm_clip, options
    return wrap("clipped_grad", fun, _clipped_sum, *arguments)


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
    """Computes the norm of the gradient of each example, but not the gradients.

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
    options = make_options(microbatch_size, AccumulationType.CONCAT, None, None)
    of_loss = has_aux, argnums, batch_argnums, keep_batch_dim
    return wrap("per_example_grad_norms", fun, _norms, of_loss, groups, method, options)


def gradient_paths(
    fun: Callable[..., Any],
    has_aux: bool = False,
    argnums: int | Sequence[int] = 0,
    *,
    batch_argnums: int | Sequence[int] = 1,
    keep_batch_dim: bool = True,
) -> Callable[..., PyTree[Path]]:
    """Says how `clipped_grad` computes the norm for each parameter.

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
    of_loss = has_aux, argnums, batch_argnums, keep_batch_dim
    return wrap("gradient_paths", fun, _paths, of_loss)


#
# A call
#


def _clipped_sum(call, of_loss, groups, method, l2_norm_clip, options):
    gradients = _find_gradients(call, of_loss, groups, method, options.size)
    limits = _limits_of(l2_norm_clip, gradients.labels)

    def clipped(*example: Any) -> tuple[list[Summand], PerExampleNorms]:
        factors, bounds, visible = gradients.of_example(*example)
        scales = {k: clip_factors(bounds[k], limits[k]) for k in bounds}
        # Noise is added before any rounding: the rounding of a large sum may exceed the
        # contribution of an example.
        summand = lambda x, k, p: Summand(x, scales[k], p.shape, wide_dtype(p.dtype))
        return [*map(summand, factors, gradients.labels, gradients.params)], visible

    kinds = options.accumulator, AccumulationType.CONCAT
    options = options._replace(accumulator=kinds)
    sums, visible = map_rows(clipped, gradients.batch, options)
    return gradients.treedef.unflatten(sums), visible


def _norms(call, of_loss, groups, method, options):
    gradients = _find_gradients(call, of_loss, groups, method, options.size)
    visible = lambda *example: gradients.of_example(*example)[-1]
    return map_rows(visible, gradients.batch, options)


def _paths(call: Call, of_loss: tuple[Any, ...]) -> PyTree[Path]:
    gradients = _find_gradients(call, of_loss)
    batch, found = gradients.batch, []

    def trace_first() -> None:
        leaves = batch.take(0)
        row = [x[0] for x in batch.mapped(leaves)]
        found.extend(gradients.trace(leaves, batch.state, 0, row).paths)

    jax.eval_shape(trace_first)
    return gradients.treedef.unflatten(found)


def _limits_of(l2_norm_clip: Any, labels: list[Any]) -> dict[Any, Any]:
    """The largest norm for each of these labels."""
    if not isinstance(l2_norm_clip, dict):
        return dict.fromkeys(labels or [None], l2_norm_clip)
    if missing := [*(set(labels) - set(l2_norm_clip))]:
        raise InputError(
            f"`l2_norm_clip` has no entry for {missing}, only for {[*l2_norm_clip]}."
        )
    return l2_norm_clip


class _Gradients(NamedTuple):
    """The per-example gradients in a call.

    **Attributes:**

    - `fun`, `loss`, `batch`: the function and its arguments.
    - `params`: the arrays to differentiate with respect to; each has an entry in `names`
        and in `labels`, which are all `None` without `groups`.
    - `treedef`, `static`: what makes them a tree again.
    - `method`: what the user chose.
    """

    fun: Callable[..., Any]
    loss: Loss
    batch: Batch
    params: list[Array]
    names: list[str]
    labels: list[Any]
    treedef: Any
    static: PyTree
    method: Method

    def of_example(
        self, leaves: Any, state: Any, index: Any, row: Sequence[Array]
    ) -> tuple[list[list[AbstractFactor]], dict[Any, Array], PerExampleNorms]:
        """The gradient of an example in factors, and bounds on its norms by label."""
        traced = self.trace(leaves, state, index, row)
        value, aux, factors = gradient(traced, self.params, [*row])
        squares: dict[Any, list[Any]] = {k: [] for k in self.labels or [None]}
        for label, x in zip(self.labels, factors, strict=True):
            squares[label].append(squared_norm(x))
        found = {label: _norm_and_bound(x) for label, x in squares.items()}
        norms, bounds = ({k: x[i] for k, x in found.items()} for i in range(2))
        visible = norms[None] if None in norms else label_dict(norms)
        return factors, bounds, PerExampleNorms(value, visible, aux)

    def trace(
        self, leaves: Any, state: Any, index: Any, row: Sequence[Array]
    ) -> Traced:
        """Traces the loss of one example, as a function of parameters and row."""

        def loss(params: list[Array], row: list[Array]) -> tuple[Any, Any]:
            def of_arguments(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
                example = self.loss.expand(Call(self.fun, args, kwargs))
                wrt = eqx.combine(self.treedef.unflatten(params), self.static)
                return self.loss.value_and_aux(wrt, example)

            return self.batch.call(of_arguments, leaves, state, index, row)

        traced = trace(loss, self.params, [*row], self.method != "per_example")
        if self.method == "ghost" and "per_example" in traced.paths:
            paths = zip(self.names, traced.paths, strict=True)
            large = [name for name, path in paths if path == "per_example"]
            raise InputError(
                "`method` is 'ghost', but the per-example gradients with respect to "
                f"{listed(large)} do not factor. Use 'auto', with microbatches that fit "
                "into memory."
            )
        return traced


def _find_gradients(call, of_loss, groups=None, method: Any = "auto", size=None):
    loss = find_loss(call, *of_loss)
    both = [place for place in loss.wrt_places if place in loss.batch_places]
    if both:
        problem = f"`argnums` and `batch_argnums` both contain argument {both[0]!r}."
        fix = "For gradients with respect to the batch, use `micro_grad`."
        raise InputError(f"{problem} {fix}")
    params, static = eqx.partition(loss.wrt(call), eqx.is_inexact_array)
    leaves, treedef = jtu.tree_flatten_with_path(params)
    return _Gradients(
        call.fun,
        loss,
        find_batch(call, loss.axes, size),
        params=[jnp.asarray(x) for _, x in leaves],
        names=[jtu.keystr(path) or "(the root)" for path, _ in leaves],
        labels=[None] * len(leaves) if groups is None else _labels_of(groups, params),
        treedef=treedef,
        static=static,
        method=method,
    )


def _labels_of(groups: Groups, params: PyTree) -> list[Any]:
    """The label of each of the parameters."""
    given = resolve("groups", groups, params, params)
    leaves = jtu.tree_leaves(params, is_leaf=lambda x: x is None)
    labels = [x for x, p in zip(given, leaves, strict=True) if p is not None]
    for label, (path, _) in zip(labels, jtu.tree_leaves_with_path(params), strict=True):
        if not is_label(label):
            raise InputError(
                f"`groups` has {label!r} at `{jtu.keystr(path)}`, not a label such as a "
                "string."
            )
    return labels


def _norm_and_bound(squares: Sequence[tuple[Array, Array]]):
    """The norm with these squared norms and errors, one for each of its parts."""
    dtype = wide_dtype(*(x.dtype for pair in squares for x in pair))
    value, error = (
        sum((pair[i].astype(dtype) for pair in squares), start=jnp.zeros((), dtype))
        for i in range(2)
    )
    value = jnp.maximum(value, 0)  # rounding can make it negative
    # An error that is too small to matter is ignored.
    bound = jnp.maximum(value, (1 - _NO_MATTER) * value + error)
    return safe_sqrt(value), safe_sqrt(bound)


_NO_MATTER = 1e-3  # of the square of a norm
