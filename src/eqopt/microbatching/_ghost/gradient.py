"""The gradient of one example, in factors."""

import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array

from ..._errors import InputError
from ..._jax_internals import ClosedJaxpr, Jaxpr, JaxprEqn, attempt, bind, varying_axes
from ..._trees.control import vary
from .._arguments import is_state
from .._interpret import (
    as_array,
    checkpointed,
    evaluate,
    flattened,
    inlined,
    rematerialised,
)
from .factors import AbstractFactor, Whole, combine
from .uses import Uses, find_uses


# How a parameter's part of the norm of an example's gradient is computed: from factors
# of the gradient; from the gradient itself, which is no larger than the values that are
# combined with the parameter; or from the gradient itself, although it is larger.
Path: TypeAlias = Literal["ghost", "direct", "per_example", "unused"]

# What the user chooses.
Method: TypeAlias = Literal["auto", "ghost", "per_example"]


def path_of(uses: Uses, size: int, ghost: bool) -> Path:
    if not ghost:
        return "per_example"
    if uses.factors:
        return "ghost"
    if not uses.linear and not uses.others:
        return "unused"
    return "direct" if size <= max(uses.others, default=0) else "per_example"


class Traced(NamedTuple):
    """A function `(params, mapped) -> (value, aux)` of lists of arrays.

    **Attributes:**

    - `fun`: the function.
    - `closed`: its program, inlined; `None` if it cannot be read.
    - `output`: its result, with a `jax.ShapeDtypeStruct` for every array.
    - `uses`, `paths`: how each of `params` is used.
    """

    fun: Callable[..., Any]
    closed: ClosedJaxpr | None
    output: Any
    uses: list[Uses]
    paths: list[Path]


def trace(
    fun: Callable[..., Any], params: list[Array], mapped: list[Array], ghost: bool
) -> Traced:
    closed, like, static = eqx.filter_make_jaxpr(fun)(params, mapped)
    output = eqx.combine(like, static)
    _check_output(output)

    def read() -> Traced:
        program = inlined(closed, [*params, *mapped])
        uses = find_uses(program, len(params), len(mapped))
        pairs = zip(uses, params, strict=True)
        paths: list[Path] = [path_of(x, p.size, ghost) for x, p in pairs]
        return Traced(fun, program, output, uses, paths)

    return attempt(read, lambda: _unread(fun, output, len(params)))


def _unread(fun: Callable[..., Any], output: Any, count: int) -> Traced:
    return Traced(fun, None, output, [Uses([], [])] * count, ["per_example"] * count)


def _check_output(output: Any) -> None:
    is_pair = isinstance(output, tuple) and len(output) == 2
    parts: tuple[Any, Any] = output if is_pair else (output, None)
    value, aux = parts
    is_scalar = is_pair and _is_struct(value) and value.shape == ()
    if not is_scalar or not jnp.issubdtype(value.dtype, jnp.floating):
        raise InputError(
            None,
            "the function must return a floating-point scalar, or with `has_aux=True` a "
            f"pair of one and anything else, but returned {eqx.tree_pformat(value)}.",
        )
    if any(is_state(x) for x in jtu.tree_leaves(aux, is_leaf=is_state)):
        raise InputError(
            None,
            "the function returns an `eqx.nn.State`, which mixes examples. Use a layer "
            "without one, such as `eqx.nn.GroupNorm` instead of `eqx.nn.BatchNorm`.",
        )


def gradient(
    traced: Traced, params: list[Array], mapped: list[Array]
) -> tuple[Array, Any, list[list[AbstractFactor]]]:
    """The value, `aux`, and the gradient with respect to each parameter.

    A parameter with a factored gradient is a constant here. Instead, a zero is added to
    each result in which it is used: the gradient with respect to that zero is the
    cotangent.
    """
    plain = _unread(traced.fun, traced.output, len(params))
    return attempt(
        lambda: _gradient(traced, params, mapped),
        lambda: _gradient(plain, params, mapped),
    )


def _gradient(
    traced: Traced, params: list[Array], mapped: list[Array]
) -> tuple[Array, Any, list[list[AbstractFactor]]]:
    paths = traced.paths
    pairs = zip(traced.uses, paths, strict=True)
    tapped = [use for uses, path in pairs if path == "ghost" for use in uses.linear]
    number = {id(use.eqn): i for i, use in enumerate(tapped)}
    outputs: list[Any] = [use.eqn.outvars[0].aval for use in tapped]
    taps = {
        i: vary(jnp.zeros(x.shape, x.dtype), varying_axes(x))
        for i, x in enumerate(outputs)
    }
    whole = {
        i: p for i, p in enumerate(params) if paths[i] in ("direct", "per_example")
    }

    def forward(taps: dict[int, Array], whole: dict[int, Array]) -> tuple[Array, Any]:
        filled = [whole.get(i, p) for i, p in enumerate(params)]
        if traced.closed is None:
            result = eqx.filter(traced.fun(filled, mapped), eqx.is_array)
            value, *aux = jtu.tree_leaves(result)
            return value, (aux, {})
        outputs, inputs = run(traced.closed, taps, [*filled, *mapped])
        value, *aux = map(as_array, outputs, traced.closed.out_avals)
        return value, (aux, inputs)

    def run(
        closed: ClosedJaxpr | Jaxpr, taps: dict[int, Array], args: list[Any]
    ) -> tuple[list[Any], dict[int, list[Any]]]:
        """The outputs, and the values that multiply the tapped parameters."""
        inputs = {}

        def tap(eqn: JaxprEqn, values: list[Any]) -> list[Array] | None:
            inner = rematerialised(eqn)
            if inner is not None:
                inside = [number.get(id(eqn)) for eqn, _ in flattened(inner)[0]]
                mine = {i: taps[i] for i in inside if i is not None}
                again = checkpointed(eqn, functools.partial(run, inner))
                outputs, found = again(mine, values)
                inputs.update(found)
                return outputs
            if id(eqn) not in number:
                return None
            i = number[id(eqn)]
            k = tapped[i].operand
            inputs[i] = [*values[:k], None, *values[k + 1 :]]
            (out,) = bind(eqn, values)
            return [out + taps[i]]

        return evaluate(closed, args, tap), inputs

    value, pullback, (aux, inputs) = jax.vjp(forward, taps, whole, has_aux=True)
    cotangents, gradients = pullback(jnp.ones_like(value))
    factors: list[list[AbstractFactor]] = [
        [Whole(gradients[i])] if i in whole else [] for i in range(len(params))
    ]
    for i, uses in enumerate(traced.uses):
        if paths[i] == "ghost":
            places = [number[id(use.eqn)] for use in uses.linear]
            factors[i] = combine(
                [tapped[k].factor(inputs[k], cotangents[k]) for k in places]
            )
    arrays, static = eqx.partition(traced.output, _is_struct)
    arrays = jtu.tree_unflatten(jtu.tree_structure(arrays), [value, *aux])
    return value, eqx.combine(arrays, static)[1], factors


def _is_struct(x: Any) -> bool:
    return isinstance(x, jax.ShapeDtypeStruct)
