"""Evaluates the equations of traced functions, and reads the types of their arrays."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from ._typecheck import no_type_check


@no_type_check
def in_lockstep(
    jaxpr: Jaxpr,
    consts: Sequence[Any],
    rows: Sequence[Sequence[Any]],
    compute: Callable[[JaxprEqn, list[list[Any]]], Sequence[Sequence[Any]]],
) -> list[list[Any]]:
    """The outputs of a traced function for each row of inputs, in lockstep.

    `compute` takes an equation with its inputs in each row, and returns its outputs in
    each row.
    """
    known = dict(zip(jaxpr.constvars, consts, strict=True))
    values = [known | dict(zip(jaxpr.invars, row, strict=True)) for row in rows]
    read = lambda of, xs: [x.val if isinstance(x, Literal) else of[x] for x in xs]
    for eqn in jaxpr.eqns:
        inputs = [read(of, eqn.invars) for of in values]
        with eqn.ctx.manager:
            outputs = compute(eqn, inputs)
        for of, out in zip(values, outputs, strict=True):
            of.update(zip(eqn.outvars, out, strict=True))
    return [read(of, jaxpr.outvars) for of in values]


@no_type_check  # called once per leaf
def bind(eqn: JaxprEqn, inputs: Sequence[Any]) -> Sequence[Any]:
    """The outputs of an equation for the given inputs."""
    params = eqn.primitive.get_bind_params(eqn.params)
    # Before JAX 0.9.2, functions among the parameters were passed as arguments.
    functions, params = params if isinstance(params, tuple) else ((), params)
    outputs = eqn.primitive.bind(*functions, *inputs, **params)
    return outputs if eqn.primitive.multiple_results else [outputs]


@no_type_check
def equations(closed: ClosedJaxpr) -> Iterator[JaxprEqn]:
    """The equations of a traced function, and of the functions that it calls."""
    for eqn in closed.jaxpr.eqns:
        yield eqn
        for inner in _inside(eqn.params.values()):
            yield from equations(inner)


def _inside(values: Iterable[Any]) -> Iterator[ClosedJaxpr]:
    for value in values:
        if isinstance(value, ClosedJaxpr):
            yield value
        elif isinstance(value, tuple | list):
            yield from _inside(value)


def manual_type(aval: Any) -> Any:
    """How an array varies between devices inside `jax.shard_map`.

    It is the set of the axes along which the array varies, and from JAX 0.10 on, an
    object that has this set as `varying`.
    """
    return getattr(aval, "manual_axis_type", getattr(aval, "vma", None))
