"""Per-example gradients, one microbatch at a time."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
from jaxtyping import ArrayLike

from .._types import IntegerLike, PyTree, StaticInteger
from ._accumulator import AccumulationType
from ._arguments import Call, find_batch
from ._loop import Options, make_options
from ._loss import find_loss
from ._vmap import map_examples
from ._wrapped import wrap


class PerExample(NamedTuple):
    """The second result of `micro_grad`; axis 0 is the batch axis."""

    values: Any
    metrics: Any
    aux: Any


def micro_grad(
    fun: Callable[..., Any],
    has_aux: bool = False,
    argnums: int | Sequence[int] = 0,
    *,
    batch_argnums: int | Sequence[int] = 1,
    keep_batch_dim: bool = True,
    microbatch_size: StaticInteger | None = None,
    accumulator: PyTree = AccumulationType.SUM,
    transform_fn: Callable[[PyTree], Any] = lambda grads: grads,
    metrics_fn: Callable[[PyTree], Any] = lambda grads: None,
    weights: ArrayLike | None = None,
    num_real_microbatches: IntegerLike | None = None,
) -> Callable[..., Any]:
    """Computes the gradient for every example, transforms it, and accumulates.

    The gradients of different examples are combined only after `transform_fn`, which
    can clip or square them, for example. They exist for one microbatch at a time.

    Like `eqx.filter_grad`, it differentiates with respect to the floating-point arrays
    of an argument; other leaves are `None`.

    !!! example

        ```python
        from eqopt.microbatching import AccumulationType, micro_grad

        def loss(params, features, targets):
            return 0.5 * jnp.mean((features @ params - targets) ** 2)

        grad_fn = micro_grad(
            loss,
            batch_argnums=(1, 2),
            microbatch_size=2,
            accumulator=AccumulationType.MEAN,
            transform_fn=lambda g: (g, g**2),
            metrics_fn=jnp.linalg.norm,
        )
        features, targets = jnp.ones((4, 1)), jnp.array([0.0, 2.0, 4.0, 6.0])
        (mean, mean_square), aux = grad_fn(jnp.zeros(1), features, targets)
        mean, mean_square  # [-3.], [14.]
        aux.values         # [0., 2., 8., 18.]
        aux.metrics        # [0., 2., 4., 6.]
        ```

    ??? cite "Reference"

        ```bibtex
        @misc{roulet2025per,
            title={Per-Example Gradients: a New Frontier for Understanding and Improving
                   Optimizers},
            author={Vincent Roulet and Atish Agarwala},
            year={2025},
            eprint={2510.00236},
            archivePrefix={arXiv},
            primaryClass={cs.LG},
        }
        ```

    **Arguments:**

    - `fun`: a function that returns a scalar, or with `has_aux` a pair of a scalar and
        anything else.
    - `has_aux`: whether `fun` returns such a pair. Defaults to `False`.
    - `argnums`: the position in the signature of `fun` of the argument to differentiate
        with respect to, or a sequence of these, which makes the gradient a tuple. A
        call may pass it by name. Negative numbers count from the last position in use.
        Defaults to 0.
    - `batch_argnums`: the positions of the arguments that are batches: every array in
        them has its examples along axis 0. Defaults to 1. Every array in a keyword-only
        argument must also have its examples along axis 0, except for an `eqx.nn.State`,
        as in [`eqopt.microbatching.micro_vmap`][]. A single random key in an argument
        `key` is split into one per example.
    - `keep_batch_dim`: whether `fun` gets an example of the arguments in
        `batch_argnums` as a batch of size one, or without its batch axis. Other
        arguments never have a batch axis. Defaults to `True`.
    - `microbatch_size`: the number of examples per microbatch. It need not divide the
        number of examples. Defaults to `None`: all examples at once.
    - `accumulator`: how to combine the results of `transform_fn`, as in
        [`eqopt.microbatching.microbatch`][]. Sums and means are over examples. Defaults
        to the sum.
    - `transform_fn`: a function of one example's gradient. Defaults to the identity. If
        you add noise to the sum, let it return float32: sums of lower precision are
        rounded.
    - `metrics_fn`: a function of one example's gradient, before `transform_fn`, that
        returns a small result. By default, the result is `None`.
    - `weights`: the weight of each example in the sum or mean of the results of
        `transform_fn`, as in [`eqopt.microbatching.micro_vmap`][].
    - `num_real_microbatches`: as in [`eqopt.microbatching.microbatch`][].

    **Returns:**

    A function with the arguments of `fun` that returns `(gradients, aux)`. `gradients`
    are accumulated. `aux` is a named tuple with the fields `values` (the scalars),
    `metrics` and `aux` (`None` without `has_aux`), all with one entry per example along
    axis 0; except for an `eqx.nn.State` in `aux`, which is the last State.

    **Raises:**

    The `ValueError`s of [`eqopt.microbatching.micro_vmap`][].
    """
    owner = "micro_grad"
    return wrap(
        owner,
        fun,
        _micro_grad,
        (has_aux, argnums, batch_argnums, keep_batch_dim),
        transform_fn,
        metrics_fn,
        make_options(
            owner, microbatch_size, accumulator, weights, num_real_microbatches
        ),
    )


def _micro_grad(
    call: Call,
    of_loss: tuple[Any, ...],
    transform_fn: Callable[[PyTree], Any],
    metrics_fn: Callable[[PyTree], Any],
    options: Options,
) -> Any:
    loss = find_loss(call, *of_loss)
    batch = find_batch(call.args, call.kwargs, loss.axes, options.size, loss.key)

    def one_example(*args: Any, **kwargs: Any) -> tuple[Any, PerExample]:
        args, kwargs = loss.expand(args, kwargs)
        grad_fn = eqx.filter_value_and_grad(loss.value_and_aux, has_aux=True)
        (value, aux), grads = grad_fn(loss.wrt(args, kwargs), args, kwargs)
        metrics = metrics_fn(grads)
        return transform_fn(grads), PerExample(value, metrics, aux)

    kinds = options.accumulator, AccumulationType.CONCAT
    return map_examples(one_example, batch, options._replace(accumulator=kinds))
