"""Functions of a batch, evaluated one microbatch at a time."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
from jaxtyping import ArrayLike

from .._errors import InputError
from .._types import IntegerLike, StaticInteger
from ._accumulator import AccumulationType, Accumulators
from ._arguments import (
    Call,
    as_tuple,
    find_batch,
    find_places,
    list_places,
    match_axes,
    wrap,
)
from ._loop import Options, make_options, run


# Differs from `optax.microbatching` in that, throughout this room:
# 1. arguments and outputs may contain other leaves than arrays, as in Equinox;
# 2. axes may be negative, and the microbatch size need not divide the batch;
# 3. sums and means of 16-bit floats are kept in 32 bits, and rounded once;
# 4. a running mean is a sum, divided at the end: equal to rounding;
# 5. without a microbatch size, there is one microbatch; custom accumulators are called;
# 6. `micro_grad` gives no gradient for a Python float, as `eqx.filter_grad` does not;
# 7. rows can have weights; a single `key` becomes several; an `eqx.nn.State` is passed
#    from one microbatch to the next.


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
    owner = "microbatch"
    return wrap(
        owner,
        fun,
        _microbatch,
        (*as_tuple(argnums), *as_tuple(argnames)),
        in_axes,
        make_options(
            owner, microbatch_size, accumulator, weights, num_real_microbatches
        ),
    )


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
    owner = "micro_value_and_grad"
    batches = *as_tuple(batch_argnums), *as_tuple(batch_argnames)
    if 0 in batches:
        raise InputError(
            owner,
            f"`batch_argnums={batch_argnums}` contains the first argument, but the "
            "gradient is with respect to it. Pass the model first, then the batch.",
        )
    # Without the microbatches that `num_real_microbatches` omits.
    mean = AccumulationType.RUNNING_MEAN
    kinds = ((mean, aux_accumulator), mean) if has_aux else mean
    return wrap(
        owner,
        eqx.filter_value_and_grad(fun, has_aux=has_aux),
        _microbatch,
        batches,
        0,
        make_options(owner, microbatch_size, kinds, weights, num_real_microbatches),
    )


def _microbatch(
    call: Call,
    batches: tuple[int | str, ...],
    in_axes: int | Sequence[int],
    options: Options,
) -> Any:
    fun, args, kwargs = call
    places = list_places(call)
    axes = match_axes(in_axes, find_places(places, batches))
    batch = find_batch(args, kwargs, axes, options.size, places.get("key"))
    return run(functools.partial(batch.call, fun), batch, options)
