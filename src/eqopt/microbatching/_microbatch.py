"""Functions of a batch, or of its examples, evaluated one microbatch at a time."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike

from .._arguments.checks import check_integer, check_interval
from .._errors import InputError, noting
from .._jax_internals import attempt, is_traced, varying_axes
from .._trees.control import rounds_alike, vary
from .._trees.leaves import type_name
from .._trees.sharding import is_in_shard_map
from .._types import IntegerLike, PyTree, StaticInteger
from ._accumulator import (
    AccumulationType,
    Accumulators,
    each,
    fill,
    make_rules,
    make_weights,
)
from ._batch import (
    Batch,
    Call,
    Place,
    as_tuple,
    find_batch,
    is_single_key,
    is_state,
    match_axes,
    wrap,
)
from ._interpret import as_array, evaluate_in_loop, last_products


# Differs from `optax.microbatching` in that, throughout this room:
# 1. arguments and outputs may contain other leaves than arrays, as in Equinox;
# 2. axes may be negative, and the microbatch size need not divide the batch;
# 3. sums and means of 16-bit floats are kept in 32 bits, and rounded once;
# 4. a running mean is a sum, divided at the end: equal to rounding;
# 5. without a microbatch size, there is one microbatch; custom accumulators are called;
# 6. `micro_grad` gives no gradient for a Python float, as `eqx.filter_grad` does not;
# 7. rows can have weights; a single `key` becomes several; an `eqx.nn.State` is passed
#    from one microbatch to the next.


class Options(NamedTuple):
    """What all public functions take, as in `microbatch`."""

    size: int | None
    accumulator: PyTree
    weights: Any
    num_real: Any


def microbatch(
    fun: Callable[..., Any],
    argnums: int | Sequence[int],
    microbatch_size: StaticInteger | None,
    accumulator: Accumulators = AccumulationType.SUM,
    *,
    argnames: str | Sequence[str] = (),
    in_axes: int | Sequence[int] = 0,
    weights: ArrayLike | None = None,
    num_real_microbatches: IntegerLike | None = None,
) -> Callable[..., Any]:
    """Evaluates a function of a batch one microbatch at a time.

    This needs only as much memory as one microbatch. `accumulator` combines the results
    of `fun`: choose one that matches the function, such as `SUM` for a sum over rows.
    For an empty batch, see [`eqopt.microbatching.AccumulationType`][].

    Microbatch `i` of `n` holds the rows `i, i + n, i + 2n, ...`, so that an array that
    is sharded over its batch axis need not move. If `microbatch_size` does not divide
    the batch, the `n` full microbatches share the first rows in this manner, and the
    remaining rows form a smaller, last microbatch.

    If `fun` has an argument `key` and gets a single random key, microbatches still have
    different dropout masks: microbatch `i` gets `jr.fold_in(key, i)`. If `argnames`
    contains `"key"`, each row has its own key instead, either from `jr.split(key,
    rows)` or as passed by you, and the result does not depend on the microbatch size.

    If one of the other arguments is an `eqx.nn.State`, and the output contains one,
    each microbatch gets the State that the previous one returned. The last State is
    returned, whatever the accumulator. So batch normalisation sees one microbatch at a
    time. A microbatch with zero weight also passes its State on.

    `fun` is traced once, or twice if the last microbatch is smaller. The result can be
    differentiated, but reverse-mode differentiation keeps the intermediate values of
    *all* microbatches. To save memory, microbatch the function that computes the
    gradient, as in the second example.

    !!! example

        ```python
        from eqopt.microbatching import AccumulationType, microbatch

        kinds = (AccumulationType.CONCAT, AccumulationType.SUM)
        f = microbatch(lambda x: (x + 1, jnp.sum(3 * x)), 0, 2, kinds)
        f(jnp.array([1, 2, 3, 4]))  # [2, 3, 4, 5], 30
        ```

    !!! example

        The loss and its gradient for a whole Equinox model and a large batch:

        ```python
        @eqx.filter_jit
        def loss_and_grad(model, batch):
            f = eqx.filter_value_and_grad(mean_loss)
            return microbatch(f, 1, 64, AccumulationType.MEAN)(model, batch)
        ```

    !!! example

        Padding for `num_real_microbatches`. Each microbatch is a column of the matrix:

        ```python
        # 2 rows each; 3 real microbatches of 5
        batch = jnp.pad(jnp.arange(6).reshape(2, 3), ((0, 0), (0, 5 - 3)))
        f = microbatch(jnp.sum, 0, 2, num_real_microbatches=3)
        f(batch.ravel())  # 15
        ```

    **Arguments:**

    - `fun`: a function of arbitrary pytrees. Its arguments and its output may have
        leaves that are not arrays; such leaves of the output are returned unchanged.
    - `argnums`: the positions in the signature of `fun` of the arguments that are
        batches: every array in them has a batch axis. A call may pass them by name.
        Negative numbers count from the last position in use. `()` means none.
    - `microbatch_size`: the number of rows per microbatch; `None` for one microbatch of
        the whole batch.
    - `accumulator`: how to combine the outputs: an
        [`eqopt.microbatching.AccumulationType`][] or an
        [`eqopt.microbatching.Accumulator`][], or a pytree of these that is a prefix of
        the output. Defaults to the sum. The result has the dtype of `fun`'s output.
    - `argnames`: the names of more arguments that are batches. Defaults to none.
    - `in_axes`: the batch axis, or a sequence with an axis for each of `argnums` and
        then `argnames`. Axes may be negative. Defaults to 0.
    - `weights`: the weight of each row: nonnegative real numbers, integers or bools of
        shape `(rows,)`, in the order of the batch. They are converted to float32,
        unless they are float64. `MEAN` and `RUNNING_MEAN` weight each microbatch by the
        sum of the weights of its rows; `fun` must return the mean with these weights. A
        microbatch with weight 0 is ignored, even if it is NaN. If all weights are 0,
        the mean is 0. `SUM`, `CONCAT` and custom accumulators do not use them. Defaults
        to `None`: every row counts the same.
    - `num_real_microbatches`: if given, only the first so many microbatches are
        evaluated. All padding must be in the others: at the end of the batch, it would
        be in every microbatch. So pad each `n` rows, as in the third example, or give
        padding weight 0 with `weights`. `SUM` omits the others, `MEAN` still divides by
        the number of all, `RUNNING_MEAN` by this number, and `CONCAT` has zeros for the
        others. If it is an integer array, another number needs no recompilation, but it
        is clipped to the valid range, and there is no reverse-mode differentiation.

    **Returns:**

    A function with the arguments of `fun`. Use it under `eqx.filter_jit`; otherwise, it
    is compiled again in every call.

    **Raises:**

    A `ValueError`, here or when the function is called, that names the wrong argument:
    no array with a batch axis; unequal batch axes; an axis or an argument that does not
    exist; `microbatch_size` not positive or larger than the batch;
    `num_real_microbatches` out of range; an `accumulator` that does not fit the output;
    `MEAN` or `RUNNING_MEAN` of integers; `weights` of another shape, or negative (if
    their values are known); more than one `eqx.nn.State`, or a State that is returned
    with another structure, shape or dtype.
    """
    options = make_options(microbatch_size, accumulator, weights, num_real_microbatches)
    batches = *as_tuple(argnums), *as_tuple(argnames)
    return wrap("microbatch", fun, _microbatch, batches, in_axes, options)


def micro_value_and_grad(
    fun: Callable[..., Any],
    has_aux: bool = False,
    *,
    batch_argnums: int | Sequence[int] = 1,
    batch_argnames: str | Sequence[str] = (),
    microbatch_size: StaticInteger | None,
    aux_accumulator: Accumulators = AccumulationType.RUNNING_MEAN,
    weights: ArrayLike | None = None,
    num_real_microbatches: IntegerLike | None = None,
) -> Callable[..., Any]:
    """Computes a mean loss and its gradient, with the memory of one microbatch.

    Like `eqx.filter_value_and_grad`, it differentiates with respect to the
    floating-point arrays of the first argument; its other leaves are `None`. It applies
    [`eqopt.microbatching.microbatch`][] with `AccumulationType.RUNNING_MEAN`. See there
    for how rows are grouped, and how a `key` and an `eqx.nn.State` are handled.

    !!! example

        ```python
        from eqopt.microbatching import micro_value_and_grad

        def loss_fn(model, x, y):
            return jnp.mean((jax.vmap(model)(x) - y) ** 2)

        @eqx.filter_jit(donate="all-except-first")
        def train_step(batch, model, state):
            value_and_grad = micro_value_and_grad(
                loss_fn, batch_argnums=(1, 2), microbatch_size=64
            )
            loss, grads = value_and_grad(model, *batch)
            model, state = opt.step(grads, state, model)
            return model, state, loss
        ```

    **Arguments:**

    - `fun`: a function that returns a scalar, the mean loss over the rows of a batch,
        or with `has_aux` a pair of this scalar and anything else.
    - `has_aux`: whether `fun` returns such a pair. Defaults to `False`.
    - `batch_argnums`: the positions in the signature of `fun` of the arguments that are
        batches: every array in them has its rows along axis 0. A call may pass them by
        name, but not the first argument, which cannot be a batch. Negative numbers
        count from the last position in use. `()` means none. Defaults to 1.
    - `batch_argnames`: the names of more arguments that are batches. Defaults to none.
    - `microbatch_size`: the number of rows per microbatch. It need not divide the
        number of rows. `None` means one microbatch of the whole batch.
    - `aux_accumulator`: how to combine the other results of `fun`, as in
        [`eqopt.microbatching.microbatch`][]. Defaults to the mean.
    - `weights`: the weight of each row, as in [`eqopt.microbatching.microbatch`][].
        `fun` must return the mean with these weights.
    - `num_real_microbatches`: as in [`eqopt.microbatching.microbatch`][]: the number of
        microbatches to evaluate. The results are means over these. Their rows are not
        the first rows of the batch, so do not put padding at its end; see there.

    **Returns:**

    A function with the arguments of `fun` that returns `(value, gradient)`, or
    `((value, aux), gradient)` with `has_aux`.

    **Raises:**

    The `ValueError`s of [`eqopt.microbatching.microbatch`][], and a `ValueError` if the
    first argument is a batch.
    """
    batches = *as_tuple(batch_argnums), *as_tuple(batch_argnames)
    if 0 in batches:
        raise InputError(
            f"`batch_argnums={batch_argnums}` contains the first argument, but the "
            "gradient is with respect to it. Pass the model first, then the batch."
        )
    # Without the microbatches that `num_real_microbatches` omits.
    mean = AccumulationType.RUNNING_MEAN
    kinds = ((mean, aux_accumulator), mean) if has_aux else mean
    options = make_options(microbatch_size, kinds, weights, num_real_microbatches)
    grad_fn = eqx.filter_value_and_grad(fun, has_aux=has_aux)
    return wrap("micro_value_and_grad", grad_fn, _microbatch, batches, 0, options)


def micro_vmap(
    fun: Callable[..., Any],
    in_axes: int | Sequence[int | None] = 0,
    out_axes: Literal[0] = 0,
    *,
    microbatch_size: StaticInteger | None = None,
    vmap_fn: Callable[..., Callable[..., Any]] = jax.vmap,
    accumulator: Accumulators = AccumulationType.CONCAT,
    weights: ArrayLike | None = None,
    num_real_microbatches: IntegerLike | None = None,
) -> Callable[..., Any]:
    """Vectorises a function of one example, with the memory of one microbatch.

    Like `eqx.filter_vmap`, it maps over arrays and passes other leaves to every example
    unchanged. Unlike `eqx.filter_vmap`, it evaluates the examples in microbatches. The
    outputs can be reduced along the way, so they need not all exist at once.

    An `eqx.nn.State` that is not mapped is passed from one microbatch to the next, if
    `fun` also returns it. All examples of a microbatch must return the same State.

    !!! example

        ```python
        from eqopt.microbatching import micro_vmap

        # `model` is the same for every row of `x`; 32 rows at a time.
        y = micro_vmap(lambda m, x: m(x), (None, 0), microbatch_size=32)(model, x)
        ```

    **Arguments:**

    - `fun`: a function of one example. Its arguments and its output may be any pytrees,
        with leaves that are not arrays.
    - `in_axes`: the axis to map over, for all positional arguments; or a sequence with
        an axis for each argument in the order of `fun`'s signature, or `None` for an
        argument that is not mapped. A call may pass the last of them by name. Axes may
        be negative. Other keyword arguments are mapped over axis 0, except for an
        `eqx.nn.State`. If an argument `key` is mapped and is a single random key, it is
        split into one per example, `jr.split(key, rows)`. Defaults to 0.
    - `out_axes`: the position of the mapped axis in the output. Only 0 is supported:
        use `jnp.moveaxis` on the result.
    - `microbatch_size`: the number of examples per microbatch. It need not divide the
        number of examples. Defaults to `None`: all examples at once.
    - `vmap_fn`: the function that vectorises a microbatch, like `jax.vmap`. It is
        called as `vmap_fn(function_of_arrays, in_axes=..., out_axes=0)`, or with
        `out_axes=(0, None)` if an argument that is not mapped is an `eqx.nn.State`.
        Defaults to `jax.vmap`.
    - `accumulator`: how to combine the outputs, as in
        [`eqopt.microbatching.microbatch`][]. Sums and means are over examples. Defaults
        to `CONCAT`: one output per example, along axis 0.
    - `weights`: the weight of each example, as in [`eqopt.microbatching.microbatch`][]:
        `SUM` adds `weights[i] * output[i]`, and the means divide this by the sum of the
        weights. An example with weight 0 is ignored, even if it is NaN. A weighted sum
        of integers is a float.
    - `num_real_microbatches`: as in [`eqopt.microbatching.microbatch`][].

    **Returns:**

    A function with the arguments of `fun`. Mapped arguments have an additional axis.

    **Raises:**

    The `ValueError`s of [`eqopt.microbatching.microbatch`][] (except that integers have
    a mean here, as in `jnp.mean`); also a `ValueError` if `out_axes` is not 0, and
    JAX's error if examples return different `eqx.nn.State`s.
    """
    options = make_options(microbatch_size, accumulator, weights, num_real_microbatches)
    return wrap("micro_vmap", fun, _micro_vmap, in_axes, vmap_fn, options)


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
    accumulator: Accumulators = AccumulationType.SUM,
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
    options = make_options(microbatch_size, accumulator, weights, num_real_microbatches)
    of_loss = has_aux, argnums, batch_argnums, keep_batch_dim
    arguments = of_loss, transform_fn, metrics_fn, options
    return wrap("micro_grad", fun, _micro_grad, *arguments)


#
# A call
#


def _microbatch(call: Call, batches: Any, in_axes: Any, options: Options) -> Any:
    batch = find_batch(call, match_axes(in_axes, call.find(batches)), options.size)
    return run(functools.partial(batch.call, call.fun), batch, options)


def _micro_vmap(call: Call, in_axes: Any, vmap_fn: Any, options: Options) -> Any:
    # A call may pass the last of the arguments by name.
    axes_given = 0 if isinstance(in_axes, int) else len(in_axes)
    axes = {name: 0 for name, x in call.kwargs.items() if not is_state(x)}
    axes |= match_axes(in_axes, call.find(range(max(len(call.args), axes_given))))
    batch = find_batch(call, axes, options.size)
    return map_rows(functools.partial(batch.call, call.fun), batch, options, vmap_fn)


def _micro_grad(call, of_loss, transform_fn, metrics_fn, options) -> Any:
    loss = find_loss(call, *of_loss)
    batch = find_batch(call, loss.axes, options.size)

    def one_example(*args: Any, **kwargs: Any) -> tuple[Any, PerExample]:
        example = loss.expand(Call(call.fun, args, kwargs))
        grad_fn = eqx.filter_value_and_grad(loss.value_and_aux, has_aux=True)
        (value, aux), grads = grad_fn(loss.wrt(example), example)
        metrics = metrics_fn(grads)
        return transform_fn(grads), PerExample(value, metrics, aux)

    kinds = options.accumulator, AccumulationType.CONCAT
    of_row = functools.partial(batch.call, one_example)
    return map_rows(of_row, batch, options._replace(accumulator=kinds))


#
# The loop over the microbatches
#


def make_options(
    microbatch_size: Any, accumulator: Any, weights: Any, num_real: Any
) -> Options:
    """Checks what is known before a call."""
    if microbatch_size is not None:
        microbatch_size = check_integer("microbatch_size", microbatch_size, 1)
    is_known = not is_traced(weights) and getattr(weights, "is_fully_addressable", True)
    if weights is not None and is_known:
        lowest = np.min(np.real(weights), initial=0)
        check_interval("weights", lowest, 0, advice="To ignore a row, use 0.")
    return Options(microbatch_size, accumulator, weights, num_real)


def run(
    fun: Callable[..., Any], batch: Batch, options: Options, has_rows: bool = False
) -> Any:
    """Evaluates a function on each microbatch, and combines the results.

    **Arguments:**

    - `fun`: a function of `(leaves, state, index)`, as `batch.call` takes them.
    - `batch`: the arguments of the call.
    - `has_rows`: whether the output has one entry per row and must be aggregated first.
    """
    split, last = batch.split, jnp.asarray(batch.split.count, jnp.int32)
    executed = split.executed(options.num_real)
    weights = make_weights(options.weights, split, has_rows)

    # What `fun` returns for a full microbatch, and for the smaller, last one.
    scalar = jax.ShapeDtypeStruct((), jnp.int32)
    of_full = lambda i, state: fun(batch.take(i), state, i)
    of_rest = lambda state: fun(batch.take(None), state, last)
    full, output, products = _trace(of_full, scalar, batch.state)
    rest, rest_output = functools.partial(full, last), output
    if split.rest:
        rest, rest_output, _ = _trace(of_rest, batch.state)
    passes_state = _passes_state(batch, output)
    _passes_state(batch, rest_output)
    outputs = output, rest_output, products
    rules = make_rules(options.accumulator, outputs, passes_state, weights, executed)
    arrays = eqx.filter(output, _is_struct)

    def update(value: Any, carry: Any, index: Any, is_rest: bool) -> Any:
        part = weights.part(index, is_rest)
        value = jtu.tree_map(as_array, value, arrays)
        state = _states(value)[0] if passes_state else None
        if has_rows:
            value = each(rules, "aggregate", value, part=part)
        return each(rules, "update", carry[0], value, part=part), state

    def body(index: Any, carry: Any) -> Any:
        return update(full(index, state_of(carry)), carry, index, False)

    def body_of_rest(carry: Any) -> Any:
        return update(rest(state_of(carry)), carry, last, True)

    def state_of(carry: Any) -> Any:
        return carry[1] if passes_state else batch.state

    def aggregate(values: Any, index: Any) -> Any:
        return each(rules, "aggregate", values, part=weights.part(index, False))

    like = jax.eval_shape(aggregate, arrays, scalar) if has_rows else arrays
    carry = each(rules, "init", like), batch.state if passes_state else None
    carry = _loop(body, carry, executed, split)
    if split.rest and not isinstance(executed, int):
        is_run = executed > split.count
        carry = lax.cond(is_run, body_of_rest, lambda carry: carry, carry)
    elif split.rest and executed > split.count:
        carry = body_of_rest(carry)
    if passes_state:
        new = lambda x: carry[1] if is_state(x) else x
        output = jtu.tree_map(new, output, is_leaf=is_state)
    return fill(rules, each(rules, "finalize", carry[0]), output)


def _loop(body, carry, executed, split) -> Any:
    if split.count == 0:
        return carry
    start = jnp.asarray(0, jnp.int32)
    if isinstance(executed, int) and split.count == 1:
        return body(start, carry) if executed else carry
    varied = rounds_alike(functools.partial(body, start), carry)
    carry, round_of = varied(carry), lambda i, carry: varied(body(i, carry))
    if not isinstance(executed, int):
        return lax.fori_loop(start, jnp.minimum(executed, split.count), round_of, carry)
    # Unlike a while loop, a scan supports reverse-mode differentiation.
    indices = jnp.arange(min(executed, split.count), dtype=jnp.int32)
    return lax.scan(lambda carry, i: (round_of(i, carry), None), carry, indices)[0]


def _trace(fun: Callable[..., Any], *args: Any) -> tuple[Callable[..., Any], Any, Any]:
    """A function to call in the loop, its output, and which arrays are products.

    The shapes of the output are needed before the loop is built. Tracing `fun` for the
    shapes and again for the loop would double the tracing time.
    """
    program, like, static = eqx.filter_make_jaxpr(fun)(*args)
    treedef = jtu.tree_structure(like)

    def replay(*args: Any) -> Any:
        return attempt(
            lambda: treedef.unflatten(evaluate_in_loop(program, jtu.tree_leaves(args))),
            lambda: eqx.filter(fun(*args), eqx.is_array),
        )

    unknown = [False] * treedef.num_leaves
    products = attempt(lambda: last_products(program), lambda: unknown)
    output = eqx.combine(like, static)
    return replay, output, eqx.combine(treedef.unflatten(products), static)


def _passes_state(batch: Batch, output: PyTree) -> bool:
    """Whether the output has a State for the next microbatch; raises unless it fits."""
    states = [] if batch.state is None else _states(output)
    if not states:
        return False
    types = lambda tree: jtu.tree_map(lambda x: type_name(x.dtype, x.shape), tree)
    found, expected = types(states), types([batch.state])
    if not eqx.tree_equal(found, expected):
        raise InputError(
            "the output must have one `eqx.nn.State` with the arrays "
            f"{jtu.tree_leaves(expected)}, but has {jtu.tree_leaves(found)}. For a "
            "substate, return `state.update(substate)`."
        )
    return True


def _states(tree: PyTree) -> list[eqx.nn.State]:
    return [x for x in jtu.tree_leaves(tree, is_leaf=is_state) if is_state(x)]


def _is_struct(x: Any) -> bool:
    return isinstance(x, jax.ShapeDtypeStruct)


def map_rows(
    fun: Callable[..., Any],
    batch: Batch,
    options: Options,
    vmap_fn: Callable[..., Callable[..., Any]] = jax.vmap,
) -> Any:
    """Evaluates a function on each row of each microbatch, and combines the results.

    `fun` is a function of `(leaves, state, index, row)`, as `batch.call` takes them.
    """
    in_axes = tuple(axis for axis in batch.axes if axis is not None)

    def evaluate(leaves: list[Any], state: Any, index: Any) -> Any:
        def one(*row: Array) -> Any:
            # `jax.vmap` returns only arrays: everything else is passed through as
            # metadata.
            out = fun(leaves, state, index, row)
            dynamic, static = eqx.partition(out, eqx.is_array)
            if state is None:
                return dynamic, eqxi.Static(static)
            new, rest = eqx.partition(dynamic, is_state, is_leaf=is_state)
            return (rest, eqxi.Static(static)), new

        # All rows get the same State, and must return the same one.
        out_axes = 0 if state is None else (0, None)
        out = vmap_fn(one, in_axes=in_axes, out_axes=out_axes)(*batch.mapped(leaves))
        if state is None:
            dynamic, static = out
            return eqx.combine(dynamic, static.value)
        (rest, static), new = out
        return eqx.combine(eqx.combine(rest, new, is_leaf=is_state), static.value)

    return run(evaluate, batch, options, has_rows=True)


#
# The loss of one example
#


# What an error in the function may be about, with and without `keep_batch_dim`.
_ONE_EXAMPLE = {
    True: "The function was called with one example, as a batch of one. If it takes an "
    "example without a batch axis, pass `keep_batch_dim=False`.",
    False: "The function was called with one example, without a batch axis, because of "
    "`keep_batch_dim=False`. If it takes a batch, omit this argument.",
}


@dataclasses.dataclass(frozen=True)
class Loss:
    """A function of one example, as `micro_grad` takes it, in one call.

    **Attributes:**

    - `has_aux`, `keep_batch_dim`: as in `micro_grad`.
    - `wrt_places`, `is_one`: the arguments to differentiate with respect to, and whether
        the gradient is the one for a single argument rather than a tuple.
    - `batch_places`: the arguments in `batch_argnums`.
    - `axes`: the batch axis of each argument that has one.
    """

    has_aux: bool
    keep_batch_dim: bool
    wrt_places: tuple[Place, ...]
    is_one: bool
    batch_places: tuple[Place, ...]
    axes: dict[Place, int]

    def wrt(self, call: Call) -> PyTree:
        """The arguments to differentiate with respect to."""
        given = call.given
        batch = [given[i] for i in self.batch_places]
        chosen = tuple(given[i] for i in self.wrt_places)
        chosen = _own_on_each_device(chosen, (batch, call.kwargs))
        return chosen[0] if self.is_one else chosen

    def expand(self, call: Call) -> Call:
        """Makes examples batches of one, if the function expects batches."""
        if not self.keep_batch_dim:
            return call
        expand = lambda x: jnp.expand_dims(x, 0) if eqx.is_array(x) else x
        given = call.given
        new = {i: jtu.tree_map(expand, given[i]) for i in self.batch_places}
        return call.replaced(new)

    def value_and_aux(self, wrt: PyTree, call: Call) -> tuple[Any, Any]:
        """The loss for expanded arguments, with the arguments in `wrt` replaced."""
        chosen = (wrt,) if self.is_one else wrt
        call = call.replaced(dict(zip(self.wrt_places, chosen, strict=True)))
        with noting(_ONE_EXAMPLE[self.keep_batch_dim], TypeError, ValueError):
            out = call.result()
        return out if self.has_aux else (out, None)


def find_loss(
    call: Call,
    has_aux: bool,
    argnums: int | Sequence[int],
    batch_argnums: int | Sequence[int],
    keep_batch_dim: bool,
) -> Loss:
    """Finds the arguments of the function in a call."""
    places, batch_places = call.places, call.find(as_tuple(batch_argnums))
    numbered = {place for x, place in places.items() if isinstance(x, int)}
    key = places.get("key")
    is_batch = lambda place, x: (
        place in batch_places
        or (place == key and is_single_key(x))
        or not (place in numbered or is_state(x))
    )
    wrt = call.find(as_tuple(argnums)), isinstance(argnums, int)
    axes = {i: 0 for i, x in call.given.items() if is_batch(i, x)}
    return Loss(has_aux, keep_batch_dim, *wrt, batch_places, axes)


def _own_on_each_device(tree: PyTree, batch: PyTree) -> PyTree:
    """`tree`, whose arrays vary between devices wherever the batch does.

    Inside `jax.shard_map`, JAX would add up the gradients of all devices with respect to
    an array that does not, and mix different examples.
    """
    if not is_in_shard_map():
        return tree
    arrays = filter(eqx.is_array, jtu.tree_leaves(batch))
    axes = varying_axes(*map(jax.typeof, arrays))
    return jtu.tree_map(lambda x: vary(x, axes) if eqx.is_inexact_array(x) else x, tree)
