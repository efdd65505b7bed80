"""Look into a traced function, and evaluate it with other rules for some equations."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from jaxtyping import Array


# Takes an equation and its inputs. Returns its outputs, or `None` for the usual ones.
Rule: TypeAlias = Callable[[JaxprEqn, list[Any]], Sequence[Any] | None]

# These only call another function. Calls with derivatives of their own are not among
# them: what is inside is not what is to be differentiated.
_CALLS = {"jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint"}


def evaluate(closed: ClosedJaxpr, args: Sequence[Any], rule: Rule) -> list[Any]:
    """The outputs of a traced function; calls inside of it are inlined."""
    return _evaluate(closed.jaxpr, closed.consts, args, rule)


def inlined(closed: ClosedJaxpr, args: Sequence[Any]) -> ClosedJaxpr:
    """The same function without calls."""
    return jax.make_jaxpr(lambda *xs: evaluate(closed, xs, lambda *_: None))(*args)


def has_equation(jaxpr: ClosedJaxpr | Jaxpr, name: str) -> bool:
    """Whether there is a primitive of that name, also in calls."""
    return any(
        eqn.primitive.name == name
        or any(has_equation(inner, name) for inner in _inner_of(eqn))
        for eqn in jaxpr.eqns
    )


def _inner_of(eqn: JaxprEqn) -> Sequence[ClosedJaxpr | Jaxpr]:
    inner = eqn.params.get("jaxpr") or eqn.params.get("call_jaxpr")
    return [inner] if eqn.primitive.name in _CALLS and inner else []


def shape_of(var: Any) -> tuple[int, ...]:
    """That of an input or output of an equation."""
    return var.aval.shape


def dtype_of(var: Any) -> Any:
    """That of an input or output of an equation."""
    return var.aval.dtype


def as_array(x: Any, like: Any) -> Array:
    """An output of a traced function: a scalar without inputs comes as a number."""
    return x if isinstance(x, jax.Array) else jnp.asarray(x, like.dtype)


def bind(eqn: JaxprEqn, inputs: Sequence[Any]) -> Sequence[Any]:
    """The outputs of an equation."""
    params = eqn.primitive.get_bind_params(eqn.params)
    # Before JAX 0.9.2, functions among the parameters were arguments.
    functions, params = params if isinstance(params, tuple) else ((), params)
    outputs = eqn.primitive.bind(*functions, *inputs, **params)
    return outputs if eqn.primitive.multiple_results else [outputs]


def _evaluate(
    jaxpr: Jaxpr, consts: Sequence[Any], args: Sequence[Any], rule: Rule
) -> list[Any]:
    values = dict(zip(jaxpr.constvars, consts, strict=True))
    values |= zip(jaxpr.invars, args, strict=True)

    def read(var: Any) -> Any:
        return var.val if isinstance(var, Literal) else values[var]

    for eqn in jaxpr.eqns:
        inputs = [read(var) for var in eqn.invars]
        with eqn.ctx.manager:
            outputs = rule(eqn, inputs)
            if outputs is None and eqn.primitive.name in _CALLS:
                (inner,) = _inner_of(eqn)
                is_closed = isinstance(inner, ClosedJaxpr)
                jaxpr_of, consts_of = (
                    (inner.jaxpr, inner.consts) if is_closed else (inner, ())
                )
                outputs = _evaluate(jaxpr_of, consts_of, inputs, rule)
            elif outputs is None:
                outputs = bind(eqn, inputs)
        values |= zip(eqn.outvars, outputs, strict=True)
    return [read(var) for var in jaxpr.outvars]


def last_products(closed: ClosedJaxpr) -> list[bool]:
    """For each output, whether it is a product of matrices and not used otherwise.

    XLA merges the sum of such rows, as gradients of examples are, into one product of
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
