"""Evaluate a function one microbatch at a time."""

import functools as ft
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax import lax
from jaxtyping import Array, ArrayLike

from .._jax_internals import attempt
from .._trees.control import rounds_alike
from .._types import PyTree, StaticInteger
from ._accumulator import AccumulationType, check_accumulator
from ._arguments import Arguments, find_arguments, find_places, list_places
from ._convolutions import evaluate_in_loop
from ._interpret import as_array, last_products
from ._make_rules import make_rules
from ._rows import Split, check_size
from ._rules import each, state_leaves
from ._weights import Part, make_weights


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
    accumulator: PyTree = AccumulationType.SUM,
    *,
    argnames: str | Sequence[str] = (),
    in_axes: int | Sequence[int] = 0,
    weights: ArrayLike | None = None,
    num_real_microbatches: ArrayLike | None = None,
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
    size = check_size(microbatch_size)
    check_accumulator(accumulator)
    argnums = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    argnames = (argnames,) if isinstance(argnames, str) else tuple(argnames)
    count = len(argnums) + len(argnames)
    in_axes = (in_axes,) * count if isinstance(in_axes, int) else tuple(in_axes)
    if count == 0:
        raise ValueError(
            "`argnums` and `argnames` are both empty. Pass at least one argument that "
            "is a batch."
        )
    if len(in_axes) != count:
        raise ValueError(
            f"`in_axes={in_axes}` has length {len(in_axes)}, but there are {count} "
            f"batch arguments: `argnums={argnums}`, `argnames={argnames}`. Pass an "
            "axis for each, or a single int for all."
        )
    out = _Microbatch(
        fun,
        argnums,
        argnames,
        in_axes,
        size,
        accumulator,
        weights,
        num_real_microbatches,
    )
    return eqx.module_update_wrapper(out)


class _Microbatch(eqx.Module):
    fun: Callable[..., Any]
    argnums: tuple[int, ...]
    argnames: tuple[str, ...]
    in_axes: tuple[int, ...]
    microbatch_size: int | None
    accumulator: PyTree
    weights: Any
    num_real_microbatches: Any

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        return self.fun

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        places = list_places(self.fun, args, kwargs)
        batch = find_places(places, self.argnums, self.argnames)
        axes = dict(zip(batch, self.in_axes, strict=True))
        size, key = self.microbatch_size, places.get("key")
        arguments = find_arguments(args, kwargs, axes, size, key)
        return accumulate(
            ft.partial(_call, self.fun, arguments),
            arguments,
            self.accumulator,
            self.num_real_microbatches,
            self.weights,
            has_rows=False,
        )


def _call(
    fun: Callable[..., Any],
    arguments: Arguments,
    leaves: Sequence[Any],
    state: Any,
    index: Any,
) -> Any:
    args, kwargs = arguments.rebuild(leaves, state, index)
    return fun(*args, **kwargs)


def accumulate(
    fun: Callable[..., Any],
    arguments: Arguments,
    accumulator: PyTree,
    num_real: Any,
    weights: Any,
    *,
    has_rows: bool,
) -> Any:
    """Evaluates a function of `(leaves, state, index)` on each microbatch.

    `has_rows`: whether its output has one entry per row and must be aggregated first.
    """
    batch, split = arguments.batch, arguments.batch.split
    executed = split.executed(num_real)
    weights = make_weights(weights, split, has_rows)
    initial = None if arguments.state is None else arguments.state.value
    last = jnp.asarray(split.count, jnp.int32)
    scalar = jax.ShapeDtypeStruct((), jnp.int32)
    full, output, products = _trace(
        lambda i, s: fun(batch.full(i), s, i), scalar, initial
    )
    rest, rest_output = full, output
    if split.rest:
        rest, rest_output, _ = _trace(lambda s: fun(batch.last(), s, last), initial)
    rules = make_rules(
        accumulator, output, rest_output, products, arguments.state, weights, executed
    )

    is_struct = lambda x: isinstance(x, jax.ShapeDtypeStruct)
    like = values = eqx.filter(output, is_struct)
    if has_rows:
        like = jax.eval_shape(
            lambda like, i: each(rules, "aggregate", like, part=weights.part(i, False)),
            like,
            scalar,
        )
    carry = each(rules, "init", like)
    states = ft.partial(state_leaves, rules, jtu.tree_leaves(initial))

    def update(carry: Any, value: Any, part: Part) -> Any:
        value = jtu.tree_map(as_array, value, values)
        if has_rows:
            value = each(rules, "aggregate", value, part=part)
        return each(rules, "update", carry, value, part=part)

    def body(i: Any, carry: Any) -> Any:
        return update(carry, full(i, *states(carry)), weights.part(i, False))

    def body_of_rest(carry: Any) -> Any:
        return update(carry, rest(*states(carry)), weights.part(last, True))

    carry = _loop(body, carry, executed, split)
    if split.rest:
        if not isinstance(executed, int):
            carry = lax.cond(
                executed > split.count, body_of_rest, lambda carry: carry, carry
            )
        elif executed > split.count:
            carry = body_of_rest(carry)
    return each(rules, "finalize", carry)


def _loop(
    body: Callable[[Any, Any], Any], carry: Any, executed: int | Array, split: Split
) -> Any:
    if split.count == 0:
        return carry
    start = jnp.asarray(0, jnp.int32)
    if isinstance(executed, int) and split.count == 1:
        return body(start, carry) if executed else carry
    varied = rounds_alike(ft.partial(body, start), carry)
    carry, round_of = varied(carry), lambda i, carry: varied(body(i, carry))
    if not isinstance(executed, int):
        return lax.fori_loop(start, jnp.minimum(executed, split.count), round_of, carry)
    # Unlike a while loop, a scan supports reverse-mode differentiation.
    indices = jnp.arange(min(executed, split.count), dtype=jnp.int32)
    return lax.scan(lambda carry, i: (round_of(i, carry), None), carry, indices)[0]


def _trace(fun: Callable[..., Any], *args: Any) -> tuple[Callable[..., Any], Any, Any]:
    # The shapes of the output are needed before the loop is built. Tracing `fun` for
    # the shapes and again for the loop would double the tracing time.
    program, like, static = eqx.filter_make_jaxpr(fun)(*args)
    arguments, treedef = map(jtu.tree_structure, (args, like))

    def replay(*leaves: Any) -> Any:
        return attempt(
            lambda: treedef.unflatten(evaluate_in_loop(program, leaves)),
            lambda: eqx.filter(fun(*arguments.unflatten(leaves)), eqx.is_array),
        )

    products = attempt(
        lambda: last_products(program), lambda: [False] * treedef.num_leaves
    )
    output = eqx.combine(like, static)
    return replay, output, eqx.combine(treedef.unflatten(products), static)
