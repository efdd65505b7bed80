"""Evaluate a function one microbatch at a time."""

import functools as ft
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.extend.core
import jax.numpy as jnp
import jax.tree_util as jtu
from jax import lax
from jaxtyping import Array, ArrayLike, PyTree

from ._accumulator import AccumulationType, check_accumulator
from ._rows import Batch, Split, check_size, find_batch
from ._rules import AbstractRule, make_rules


# Differs from `optax.microbatching` in that, throughout this room:
# 1. arguments and outputs may hold what is not an array, as in Equinox' transforms;
# 2. axes may be negative, and the microbatch size need not divide the batch;
# 3. sums and means of 16-bit floats are kept in 32 bits, and rounded once;
# 4. a running mean is a sum, divided at the end: equal to rounding;
# 5. no microbatch size is one microbatch: custom accumulators are called all the same;
# 6. `micro_grad` gives no gradient for a Python float, as `eqx.filter_grad` does not.


def microbatch(
    fun: Callable[..., Any],
    argnums: int | Sequence[int],
    microbatch_size: int | None,
    accumulator: PyTree = AccumulationType.SUM,
    *,
    argnames: str | Sequence[str] = (),
    in_axes: int | Sequence[int] = 0,
    num_real_microbatches: ArrayLike | None = None,
) -> Callable[..., Any]:
    """Evaluates a function of a batch one microbatch after the other.

    What would need too much memory for the whole batch at once then needs only as much
    as for one microbatch. What `fun` returns for each microbatch is combined by
    `accumulator`: it is for you to say that your function is, for example, a sum over
    rows.

    Microbatch `i` of `n` holds the rows `i, i + n, i + 2n, ...`, so that an array that
    is sharded over its batch axis stays where it is. If `microbatch_size` does not
    divide the batch then the `n` full microbatches share the first rows in this manner,
    and the rows that remain are a smaller microbatch of their own, the last one.

    `fun` is traced once, or twice if there is a smaller microbatch. The result can be
    differentiated, but reverse-mode differentiation keeps the intermediate values of
    *all* microbatches: for a gradient in little memory, microbatch the function that
    computes it, as in the second example.

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

    **Arguments:**

    - `fun`: a function of arbitrary pytrees, that may hold leaves that are not arrays.
        So may its output: such leaves are returned as they are.
    - `argnums`: which positional arguments are batches: those whose every array has a
        batch axis. May be negative. `()` if there are none.
    - `microbatch_size`: the number of rows per microbatch; `None` for one microbatch of
        the whole batch.
    - `accumulator`: how to combine the outputs: an
        [`eqopt.microbatching.AccumulationType`][] or an
        [`eqopt.microbatching.Accumulator`][], or a pytree of these that is a prefix of
        the output. Defaults to their sum. The result has the dtype of `fun`'s output.
    - `argnames`: which keyword arguments are batches. Defaults to none.
    - `in_axes`: the batch axis, or a sequence with one for each of `argnums` and then
        `argnames`. May be negative. Defaults to 0.
    - `num_real_microbatches`: if given, only so many microbatches are evaluated, the
        first ones; the smaller one counts as the last. `SUM` leaves the others out,
        `MEAN` still divides by the number of all microbatches, `RUNNING_MEAN` by this
        number, and `CONCAT` has zeros for them. It can be an integer array, so that
        another number needs no recompilation; it is then clipped to what there is, and
        reverse-mode differentiation is not available.

    **Returns:**

    A function with the arguments of `fun`. Use it under `eqx.filter_jit`: outside, it
    is compiled anew with every call.

    **Raises:**

    `ValueError`, here or when the function is called, naming the argument that is at
    fault: no array with a batch axis; unequal batch axes; an axis or an argument that
    does not exist; `microbatch_size` not positive or larger than the batch;
    `num_real_microbatches` out of range; an `accumulator` that does not fit the output;
    `MEAN` or `RUNNING_MEAN` of integers.
    """
    check_size(microbatch_size)
    check_accumulator(accumulator)
    argnums = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    argnames = (argnames,) if isinstance(argnames, str) else tuple(argnames)
    count = len(argnums) + len(argnames)
    in_axes = (in_axes,) * count if isinstance(in_axes, int) else tuple(in_axes)
    if count == 0:
        raise ValueError(
            "`argnums` and `argnames` are both empty: name at least one argument that "
            "is a batch."
        )
    if len(in_axes) != count:
        raise ValueError(
            f"`in_axes={in_axes}` has length {len(in_axes)}, but there are {count} "
            f"batch arguments: `argnums={argnums}`, `argnames={argnames}`. Give one "
            "axis for each, or a single int for all."
        )
    out = _Microbatch(
        fun,
        argnums,
        argnames,
        in_axes,
        microbatch_size,
        accumulator,
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
    num_real_microbatches: Any

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        return self.fun

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        argnums = resolve_argnums("argnums", self.argnums, len(args))
        for name in self.argnames:
            if name not in kwargs:
                raise ValueError(
                    f"`argnames` holds {name!r}, but this call has no such keyword "
                    f"argument: it has {sorted(kwargs)}. If it is passed by position, "
                    "then put its position in `argnums`."
                )
        axes = dict(zip((*argnums, *self.argnames), self.in_axes, strict=True))
        arg_axes = [axes.get(i) for i in range(len(args))]
        kwarg_axes = {name: axes[name] for name in self.argnames}
        batch = find_batch(args, kwargs, arg_axes, kwarg_axes, self.microbatch_size)
        return accumulate(
            ft.partial(call, self.fun, batch.treedef),
            batch,
            self.accumulator,
            self.num_real_microbatches,
            has_rows=False,
        )


def call(fun: Callable[..., Any], treedef: Any, leaves: Sequence[Any]) -> Any:
    args, kwargs = treedef.unflatten(leaves)
    return fun(*args, **kwargs)


def resolve_argnums(name: str, argnums: Sequence[int], count: int) -> tuple[int, ...]:
    for i in argnums:
        if not -count <= i < count:
            raise ValueError(
                f"`{name}` holds {i}, but this call has {count} positional arguments. "
                "Arguments that are passed by keyword have no number."
            )
    resolved = tuple(i % count for i in argnums)
    if len(set(resolved)) != len(resolved):
        raise ValueError(f"`{name}={tuple(argnums)}` names an argument twice.")
    return resolved


def accumulate(
    fun: Callable[..., Any],
    batch: Batch,
    accumulator: PyTree,
    num_real: Any,
    *,
    has_rows: bool,
) -> Any:
    """Evaluates a function of the batch's leaves on each microbatch.

    `has_rows`: whether its output has one entry per row, to be aggregated first.
    """
    split = batch.split
    executed = _executed(num_real, split)
    scalar = jax.ShapeDtypeStruct((), jnp.int32)
    full, output = _trace(lambda i: fun(batch.full(i)), scalar)
    rest, rest_output = full, output
    if split.rest:
        rest, rest_output = _trace(lambda: fun(batch.last()))
    rules = make_rules(accumulator, output, rest_output, split, executed, has_rows)

    like = eqx.filter(output, _is_struct)
    if has_rows:
        like = jax.eval_shape(ft.partial(_each, rules, "aggregate"), like)
    carry = _each(rules, "init", like)
    update = ft.partial(_update, rules, has_rows)
    carry = _loop(
        lambda i, carry: update(carry, full(i), i, False), carry, executed, split
    )
    if split.rest:
        last = jnp.asarray(split.count, jnp.int32)
        if not isinstance(executed, int):
            carry = lax.cond(
                executed > split.count,
                lambda carry: update(carry, rest(), last, True),
                lambda carry: carry,
                carry,
            )
        elif executed > split.count:
            carry = update(carry, rest(), last, True)
    return _each(rules, "finalize", carry)


def _executed(num_real: Any, split: Split) -> int | Array:
    if num_real is None:
        return split.total
    if isinstance(num_real, int):
        if not 0 <= num_real <= split.total:
            raise ValueError(
                f"`num_real_microbatches={num_real}` is out of range: {split.rows} "
                f"rows in microbatches of {split.size} make {split.total}."
            )
        return num_real
    num_real = jnp.asarray(num_real)
    if num_real.shape != () or not jnp.issubdtype(num_real.dtype, jnp.integer):
        raise ValueError(
            "`num_real_microbatches` must be an int or an integer scalar, got an array "
            f"of shape {num_real.shape} and dtype {num_real.dtype}."
        )
    return jnp.clip(num_real.astype(jnp.int32), 0, split.total)


def _loop(
    body: Callable[[Any, Any], Any], carry: Any, executed: int | Array, split: Split
) -> Any:
    if not isinstance(executed, int):
        start = jnp.asarray(0, jnp.int32)
        return lax.fori_loop(start, jnp.minimum(executed, split.count), body, carry)
    steps = min(executed, split.count)
    if split.count == 1:
        return body(jnp.asarray(0, jnp.int32), carry) if steps else carry
    # A scan, unlike a while loop, can be differentiated in reverse.
    indices = jnp.arange(steps, dtype=jnp.int32)
    return lax.scan(lambda carry, i: (body(i, carry), None), carry, indices)[0]


def _trace(fun: Callable[..., Any], *args: Any) -> tuple[Callable[..., Any], Any]:
    # The shapes of the output are needed before the loop is built. To trace `fun` for
    # those and again for the loop would double the time a large model takes.
    jaxpr, like, static = eqx.filter_make_jaxpr(fun)(*args)
    replay = ft.partial(_replay, jaxpr, jtu.tree_structure(like))
    return replay, eqx.combine(like, static)


def _replay(jaxpr: Any, treedef: Any, *args: Any) -> Any:
    return treedef.unflatten(jax.extend.core.jaxpr_as_fun(jaxpr)(*args))


def _update(
    rules: PyTree, has_rows: bool, carry: Any, value: Any, index: Any, rest: bool
) -> Any:
    if has_rows:
        value = _each(rules, "aggregate", value)
    return _each(rules, "update", carry, value, index=index, rest=rest)


def _each(rules: PyTree, method: str, *trees: Any, **kwargs: Any) -> Any:
    return jtu.tree_map(
        lambda rule, *values: getattr(rule, method)(*values, **kwargs),
        rules,
        *trees,
        is_leaf=lambda x: isinstance(x, AbstractRule),
    )


def _is_struct(x: Any) -> bool:
    return isinstance(x, jax.ShapeDtypeStruct)
