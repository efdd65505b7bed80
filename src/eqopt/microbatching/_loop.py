"""The loop over the microbatches."""

import functools as ft
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax import lax
from jaxtyping import Array

from .._arguments.checks import check_integer, check_interval
from .._errors import InputError
from .._jax_internals import attempt, is_traced
from .._trees.control import rounds_alike
from .._trees.leaves import type_name
from .._types import PyTree, StaticInteger
from ._arguments import Batch, is_state
from ._convolutions import evaluate_in_loop
from ._interpret import as_array, last_products
from ._rows import Split
from ._rules import each, fill, make_rules, make_weights


class Options(NamedTuple):
    """What all public functions take, as in `microbatch`."""

    size: int | None
    accumulator: PyTree
    weights: Any
    num_real: Any


def make_options(
    owner: str,
    microbatch_size: StaticInteger | None,
    accumulator: PyTree,
    weights: Any,
    num_real_microbatches: Any,
) -> Options:
    """Checks what is known before a call."""
    if microbatch_size is not None:
        microbatch_size = check_integer(owner, "microbatch_size", microbatch_size, 1)
    is_known = not is_traced(weights) and getattr(weights, "is_fully_addressable", True)
    if weights is not None and is_known:
        lowest = np.min(np.real(weights), initial=0)
        check_interval(owner, "weights", lowest, 0, advice="To ignore a row, use 0.")
    return Options(microbatch_size, accumulator, weights, num_real_microbatches)


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
    full, output, products = _trace(
        lambda i, state: fun(batch.take(i), state, i), scalar, batch.state
    )
    rest, rest_output = ft.partial(full, last), output
    if split.rest:
        rest, rest_output, _ = _trace(
            lambda state: fun(batch.take(None), state, last), batch.state
        )
    passes_state = _passes_state(batch, output)
    _passes_state(batch, rest_output)
    rules = make_rules(
        options.accumulator,
        output,
        rest_output,
        products,
        passes_state,
        weights,
        executed,
    )
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

    like = arrays
    if has_rows:
        like = jax.eval_shape(
            lambda like, i: each(rules, "aggregate", like, part=weights.part(i, False)),
            like,
            scalar,
        )
    carry = each(rules, "init", like), batch.state if passes_state else None
    carry = _loop(body, carry, executed, split)
    if split.rest:
        if not isinstance(executed, int):
            carry = lax.cond(
                executed > split.count, body_of_rest, lambda carry: carry, carry
            )
        elif executed > split.count:
            carry = body_of_rest(carry)
    if passes_state:
        output = jtu.tree_map(
            lambda x: carry[1] if is_state(x) else x, output, is_leaf=is_state
        )
    return fill(rules, each(rules, "finalize", carry[0]), output)


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

    products = attempt(
        lambda: last_products(program), lambda: [False] * treedef.num_leaves
    )
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
            None,
            "the output must have one `eqx.nn.State` with the arrays "
            f"{jtu.tree_leaves(expected)}, but has {jtu.tree_leaves(found)}. For a "
            "substate, return `state.update(substate)`.",
        )
    return True


def _states(tree: PyTree) -> list[eqx.nn.State]:
    return [x for x in jtu.tree_leaves(tree, is_leaf=is_state) if is_state(x)]


def _is_struct(x: Any) -> bool:
    return isinstance(x, jax.ShapeDtypeStruct)
