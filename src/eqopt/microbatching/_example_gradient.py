"""The gradient of one example, in factors."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, JaxprEqn
from jaxtyping import Array

from ._factors import AbstractFactor, Whole, combine
from ._interpret import bind, evaluate, inlined
from ._uses import Uses, find_uses


# How a parameter gets its part of the norm of an example's gradient: from factors of it;
# from the gradient itself, which is no larger than the values that the parameter meets;
# or from the gradient itself, although it is.
Path: TypeAlias = Literal["ghost", "direct", "per_example", "unused"]


def path_of(uses: Uses, size: int, ghost: bool) -> Path:
    if not ghost:
        return "per_example"
    if uses.factors:
        return "ghost"
    if not uses.linear and not uses.others:
        return "unused"
    return "direct" if size <= max(uses.others, default=0) else "per_example"


class Traced(NamedTuple):
    """A function `(params, mapped) -> (value, aux)` of two lists of arrays, without calls.

    **Attributes:**

    - `closed`: the function, of the arrays of both lists.
    - `output`: what it returns, with a `jax.ShapeDtypeStruct` for every array.
    - `uses`, `paths`: what happens to each of `params`.
    """

    closed: ClosedJaxpr
    output: Any
    uses: list[Uses]
    paths: list[Path]


def trace(
    fun: Callable[..., Any], params: list[Array], mapped: list[Array], ghost: bool
) -> Traced:
    closed, like, static = eqx.filter_make_jaxpr(fun)(params, mapped)
    closed = inlined(closed, [*params, *mapped])
    uses = find_uses(closed, len(params), len(mapped))
    paths = [path_of(u, p.size, ghost) for u, p in zip(uses, params, strict=True)]
    return Traced(closed, eqx.combine(like, static), uses, paths)


def gradient(
    traced: Traced, params: list[Array], mapped: list[Array]
) -> tuple[Array, list[Array], list[list[AbstractFactor]]]:
    """The value, the arrays of `aux`, and the gradient with respect to each parameter.

    A parameter whose gradient factors is a constant here. Instead, where it is used, a
    zero is added to the result: the gradient with respect to that is the cotangent.
    """
    paths = traced.paths
    pairs = zip(traced.uses, paths, strict=True)
    tapped = [use for uses, path in pairs if path == "ghost" for use in uses.linear]
    number = {id(use.eqn): i for i, use in enumerate(tapped)}
    taps = [jnp.zeros(v.shape, v.dtype) for v in (u.eqn.outvars[0].aval for u in tapped)]
    is_direct = [path in ("direct", "per_example") for path in paths]
    direct = [p for p, flag in zip(params, is_direct, strict=True) if flag]

    def forward(taps: list[Array], direct: list[Array]) -> tuple[Array, Any]:
        inputs: list[Any] = [None] * len(tapped)
        rest = iter(direct)
        filled = [
            next(rest) if flag else p for p, flag in zip(params, is_direct, strict=True)
        ]

        def tap(eqn: JaxprEqn, values: list[Any]) -> list[Array] | None:
            if id(eqn) not in number:
                return None
            i = number[id(eqn)]
            k = tapped[i].operand
            inputs[i] = [*values[:k], None, *values[k + 1 :]]
            (out,) = bind(eqn, values)
            return [out + taps[i]]

        value, *aux = evaluate(traced.closed, [*filled, *mapped], tap)
        return value, (aux, inputs)

    value, pullback, (aux, inputs) = jax.vjp(forward, taps, direct, has_aux=True)
    cotangents, gradients = pullback(jnp.ones_like(value))
    rest = iter(gradients)
    factors = []
    for uses, path in zip(traced.uses, paths, strict=True):
        if path == "ghost":
            i = [number[id(use.eqn)] for use in uses.linear]
            factors.append(combine([tapped[j].factor(inputs[j], cotangents[j]) for j in i]))
        else:
            factors.append([] if path == "unused" else [Whole(next(rest))])
    return value, aux, factors
