"""Inspects a traced function, and evaluates it with other rules for some equations."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from .. import _jax_internals as internals
from .._jax_internals import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, bind, opened


# Takes an equation and its inputs. Returns its outputs, or `None` for the usual ones.
Rule: TypeAlias = Callable[[JaxprEqn, list[Any]], Sequence[Any] | None]

# These call another function, and compute its values again for the derivative.
_REMATERIALISED = {"remat", "remat2", "checkpoint"}

# These only call another function. Calls with custom derivatives are not among them:
# the function inside is not the one to differentiate.
_CALLS = {"jit", "closed_call", "eval_jaxpr", "core_call"} | _REMATERIALISED


def evaluate(closed: ClosedJaxpr | Jaxpr, args: Sequence[Any], rule: Rule) -> list[Any]:
    """The outputs of a traced function, with calls inside it inlined.

    Calls of `jax.checkpoint` stay unchanged.
    """

    def compute(eqn: JaxprEqn, inputs: list[Any]) -> Sequence[Any]:
        outputs = rule(eqn, inputs)
        if outputs is None and eqn.primitive.name in _CALLS:
            [inner] = _inner_of(eqn)
            call = lambda *args: evaluate(inner, args, rule)
            is_kept = rematerialised(eqn) is not None
            outputs = (checkpointed(eqn, call) if is_kept else call)(*inputs)
        return bind(eqn, inputs) if outputs is None else outputs

    return internals.evaluate(closed, args, compute)


def inlined(closed: ClosedJaxpr, args: Sequence[Any]) -> ClosedJaxpr:
    """The same function without calls, except for calls of `jax.checkpoint`.

    No two of these share their equations.
    """
    return jax.make_jaxpr(lambda *xs: evaluate(closed, xs, lambda *_: None))(*args)


def rematerialised(eqn: JaxprEqn) -> ClosedJaxpr | Jaxpr | None:
    """The function in a call of `jax.checkpoint`; `None` for other equations."""
    is_one = eqn.primitive.name in _REMATERIALISED
    return _inner_of(eqn)[0] if is_one else None


def checkpointed(eqn: JaxprEqn, fun: Callable[..., Any]) -> Callable[..., Any]:
    """`jax.checkpoint` of another function than the equation's own."""
    keywords = {name: eqn.params[name] for name in ("prevent_cse", "policy")}
    return jax.checkpoint(fun, **keywords)


def flattened(
    closed: ClosedJaxpr | Jaxpr,
) -> tuple[list[tuple[JaxprEqn, list[Any]]], list[Any]]:
    """All equations with their inputs, with calls inlined, and the outputs.

    An input or output is a variable, `None` if it is a number.
    """
    outer, _ = opened(closed)
    names: dict[Any, Any] = {}

    def resolved(variables: Sequence[Any]) -> list[Any]:
        return [None if isinstance(v, Literal) else names.get(v, v) for v in variables]

    def walk(jaxpr: Jaxpr) -> Iterator[tuple[JaxprEqn, list[Any]]]:
        for eqn in jaxpr.eqns:
            called = rematerialised(eqn)
            if called is None:
                yield eqn, resolved(eqn.invars)
                continue
            inner, _ = opened(called)
            names.update(zip(inner.invars, resolved(eqn.invars), strict=True))
            yield from walk(inner)
            names.update(zip(eqn.outvars, resolved(inner.outvars), strict=True))

    equations = list(walk(outer))
    return equations, resolved(outer.outvars)


def has_equation(jaxpr: ClosedJaxpr | Jaxpr, name: str) -> bool:
    """Whether there is a primitive with that name, including inside calls."""
    return any(
        eqn.primitive.name == name
        or any(has_equation(inner, name) for inner in _inner_of(eqn))
        for eqn in jaxpr.eqns
    )


def _inner_of(eqn: JaxprEqn) -> Sequence[ClosedJaxpr | Jaxpr]:
    inner = eqn.params.get("jaxpr") or eqn.params.get("call_jaxpr")
    return [inner] if eqn.primitive.name in _CALLS and inner else []


def shape_of(var: Any) -> tuple[int, ...]:
    """The shape of an input or output of an equation."""
    return var.aval.shape


def dtype_of(var: Any) -> Any:
    """The dtype of an input or output of an equation."""
    return var.aval.dtype


def as_array(x: Any, like: Any) -> Array:
    """An output of a traced function: a scalar without inputs is a number."""
    return x if isinstance(x, jax.Array) else jnp.asarray(x, like.dtype)


def last_products(closed: ClosedJaxpr) -> list[bool]:
    """For each output, whether it is a matrix product and not used otherwise.

    XLA merges the sum of such rows, such as per-example gradients, into one product of
    larger matrices.
    """
    eqns = {var: eqn for eqn in closed.jaxpr.eqns for var in eqn.outvars}
    used = [var for eqn in closed.jaxpr.eqns for var in eqn.invars]
    used = Counter(var for var in used if isinstance(var, Var))

    def is_product(var: Any, uses: int) -> bool:
        eqn = eqns.get(var)
        if eqn is None or used[var] != uses:
            return False
        if eqn.primitive.name in ("transpose", "reshape", "squeeze"):
            return is_product(eqn.invars[0], 1)
        return eqn.primitive.name == "dot_general"

    return [isinstance(v, Var) and is_product(v, 0) for v in closed.jaxpr.outvars]


#
# Convolutions that are as fast inside a loop as outside
#
# XLA on a CPU has a fast convolution, which requires the channels to be last. Outside
# loops, XLA moves them there automatically. Inside, the same convolution takes ten times
# as long.
#


_CONVOLUTION = "conv_general_dilated"


def evaluate_in_loop(closed: ClosedJaxpr, args: Sequence[Any]) -> list[Any]:
    """The outputs of a traced function that is called in a loop."""
    if has_equation(closed, _CONVOLUTION):
        return evaluate(closed, args, _channels_last)
    return internals.evaluate(closed, args)  # without inlining


def _channels_last(eqn: JaxprEqn, inputs: list[Any]) -> Sequence[Any] | None:
    if rematerialised(eqn) is not None:
        return bind(eqn, inputs)  # already marked as part of a derivative
    if eqn.primitive.name != _CONVOLUTION:
        return None
    as_it_is = lambda *inputs: bind(eqn, inputs)[0]
    moved = lambda *inputs: _moved(eqn, *inputs)
    return [lax.platform_dependent(*inputs, cpu=moved, default=as_it_is)]


def _moved(eqn: JaxprEqn, lhs: Array, rhs: Array) -> Array:
    """The convolution with the channels of all three arrays moved to the end."""
    old = eqn.params["dimension_numbers"]
    n = lhs.ndim
    space = tuple(range(1, n - 1))
    new = lax.ConvDimensionNumbers(
        lhs_spec=(0, n - 1, *space),
        rhs_spec=(n - 1, n - 2, *range(n - 2)),
        out_spec=(0, n - 1, *space),
    )
    # Specs list where batch (or outputs), channels (or inputs) and space are.
    move = lambda x, old, new: lax.transpose(x, [old[new.index(i)] for i in range(n)])
    (out,) = bind(
        eqn.replace(params={**eqn.params, "dimension_numbers": new}),
        [move(lhs, old.lhs_spec, new.lhs_spec), move(rhs, old.rhs_spec, new.rhs_spec)],
    )
    return move(out, new.out_spec, old.out_spec)
