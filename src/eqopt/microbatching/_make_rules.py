"""How the values of the microbatches are combined: the choice of rules."""

from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array

from .._types import PyTree
from ._accumulator import AccumulationType, Accumulator, is_accumulator
from ._rules import AbstractRule, Concat, Custom, Keep, Thread, Total
from ._state import StateArgument, check_no_state, check_state, is_state
from ._weights import AbstractWeights


def make_rules(
    accumulator: PyTree,
    output: PyTree,
    rest_output: PyTree,
    products: PyTree,
    state: StateArgument | None,
    weights: AbstractWeights,
    executed: int | Array,
) -> PyTree:
    """One rule for each array of the output, each custom accumulator, and the State.

    **Arguments:**

    - `accumulator`: as given by the user, a prefix of `output`.
    - `output`, `rest_output`: what the function returns for a full microbatch, and for
        the smaller, last one, with a `jax.ShapeDtypeStruct` for every array.
    - `products`: for every array of `output`, whether it is the result of a matrix
        product.
    - `state`: the `eqx.nn.State` among the arguments. Without one, a State in the
        output is like any other part of it.
    - `weights`: the weight of each microbatch.
    - `executed`: the number of microbatches that are evaluated.
    """
    _check_prefix(accumulator, output)
    if state is not None:
        check_state(state, output)
        check_state(state, rest_output)
    divisors = {
        AccumulationType.SUM: None,
        AccumulationType.MEAN: weights.of_all(),
        AccumulationType.RUNNING_MEAN: weights.of_first(executed),
    }

    def threads(x: Any) -> bool:
        return state is not None and is_state(x)

    def leaf_rule(
        path: Any, kind: Any, out: Any, rest: Any, product: Any
    ) -> AbstractRule:
        if state is not None and is_state(out):
            return Thread(state.value)
        return _rule(divisors, weights, path, kind, out, rest, product)

    def make(path: Any, kind: Any, out: Any, rest: Any, product: Any) -> PyTree:
        if isinstance(kind, Accumulator) and not threads(out):
            if state is not None:
                check_no_state(path, out)
            return Custom(kind)
        return jtu.tree_map_with_path(
            lambda subpath, *leaves: leaf_rule(path + subpath, kind, *leaves),
            out,
            rest,
            product,
            is_leaf=threads,
        )

    return jtu.tree_map_with_path(
        make,
        accumulator,
        output,
        rest_output,
        products,
        is_leaf=lambda x: is_accumulator(x) or threads(x),
    )


def _check_prefix(accumulator: PyTree, output: PyTree) -> None:
    try:
        jtu.tree_map(lambda *_: None, accumulator, output, is_leaf=is_accumulator)
    except ValueError:
        pass
    else:
        return
    has = jtu.tree_leaves_with_path(accumulator, is_leaf=is_accumulator)
    needs = jtu.tree_leaves_with_path(output, is_leaf=lambda x: x is None)
    has, needs = [path for path, _ in has], [path for path, _ in needs]
    missing = [p for p in needs if not any(p[: len(q)] == q for q in has)]
    extra = [q for q in has if not any(p[: len(q)] == q for p in needs)]
    where = "The types of the containers differ."
    if missing:
        where = f"There is none for `output{jtu.keystr(missing[0])}`."
    elif extra:
        where = f"There is no output for `accumulator{jtu.keystr(extra[0])}`."
    found = jtu.tree_structure(accumulator, is_leaf=is_accumulator)
    raise ValueError(
        "`accumulator` must have the structure of the function's output, or be a "
        f"prefix of it. {where} A single `AccumulationType` treats all of the output "
        "alike.\n"
        f"Found:    {found}\nExpected: {jtu.tree_structure(output)}"
    )


def _rule(
    divisors: dict[AccumulationType, float | Array | None],
    weights: AbstractWeights,
    path: Any,
    kind: AccumulationType,
    output: Any,
    rest_output: Any,
    product: Any,
) -> AbstractRule:
    if not isinstance(output, jax.ShapeDtypeStruct):
        return Keep(output)
    where = f"output{jtu.keystr(path)}"
    split, has_rows = weights.split, weights.has_rows
    concat = kind is AccumulationType.CONCAT
    skip = 1 if concat or has_rows else 0
    if output.shape[skip:] != rest_output.shape[skip:]:
        raise ValueError(
            f"{kind.name} cannot combine `{where}`: it has shape {output.shape} for "
            f"microbatches of {split.size} rows, but {rest_output.shape} for the last "
            f"one of {split.rest}. Use CONCAT for arrays with one entry per row, or a "
            f"microbatch size that divides {split.rows}."
        )
    if concat:
        return Concat(split, rest_output)
    if not has_rows and jnp.issubdtype(output.dtype, bool):
        raise ValueError(
            f"{kind.name} cannot add `{where}`, which has dtype bool. Cast it to an "
            "integer in the function, or use CONCAT."
        )
    divisor = divisors[kind]
    if not (divisor is None or has_rows or jnp.issubdtype(output.dtype, jnp.inexact)):
        raise ValueError(
            f"{kind.name} needs floating-point values, but `{where}` has dtype "
            f"{output.dtype}. Cast it in the function, or use SUM."
        )
    return Total(output.dtype, divisor, product)
