"""Runs small programs in NumPy outside `jit`, where the result has the same bits.

Outside `jit`, each operation is a program of its own for each shape and dtype. JAX 0.12
takes 26 ms to compile one: without this, the slow laws take 1.4 times as much time of the
processor. Here a program is compiled only if it runs `OFTEN`.

Bits may differ if a program rounds twice, because XLA may fuse two operations; in sums;
and for subnormal numbers, which XLA takes for zero. JAX runs these, and all that is not
in the tables below or has to be on a certain device. With `jax.debug_nans`, it also runs
what gives a NaN, and raises its error.
"""

import contextlib
import contextvars
import weakref

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

from . import interpreter


OFTEN = 20
LONGEST, LARGEST = 12, 10_000  # equations, elements

# Equations with programs, and the name of the parameter that holds it.
CALLS = {"jit": "jaxpr", "closed_call": "call_jaxpr", "custom_jvp_call": "call_jaxpr"}
# Equations that round once, that never round, and that only move elements.
ROUNDING = {"add", "add_any", "div", "integer_pow", "mul", "sqrt", "square", "sub"}
EXACT = {
    *("abs", "and", "eq", "ge", "gt", "is_finite", "le", "lt", "max", "min", "ne"),
    *("neg", "not", "or", "reduce_and", "reduce_max", "reduce_min", "reduce_or", "rem"),
    *("shift_left", "shift_right_logical", "xor"),
}
MOVING = {
    *("broadcast_in_dim", "concatenate", "convert_element_type", "copy", "iota"),
    *("dynamic_slice", "pad", "reshape", "rev", "select_n", "slice", "split"),
    *("squeeze", "stack", "stop_gradient", "transpose", "unstack"),
}

_is_compiled = contextvars.ContextVar("is_compiled", default=False)


@contextlib.contextmanager
def compiled():
    """In this context, JAX compiles each operation, as it does for users."""
    token = _is_compiled.set(True)
    try:
        yield
    finally:
        _is_compiled.reset(token)


def share() -> None:
    """From now on, NumPy runs small programs."""
    # This replaces an internal function of JAX. It only saves time, so tests do without
    # it in a release that lacks the function or has a different one.
    try:
        from jax._src import pjit

        by_jax = pjit._pjit_call_impl_python
        forget_calls = pjit._cpp_pjit_cache_fun_only.clear_all
    except (ImportError, AttributeError):
        return
    runs = weakref.WeakKeyDictionary()

    def by_numpy_or_jax(*args, jaxpr, **params):
        if _is_usual(params) and all(map(_is_plain, args)):
            if jaxpr not in runs:
                runs[jaxpr] = 0 if _is_small(jaxpr) else OFTEN + 1
            runs[jaxpr] += 1
            types = jaxpr.out_avals
            results = _computed(jaxpr, args, types) if runs[jaxpr] <= OFTEN else None
            if results and not (
                jax.config.jax_debug_nans and any(map(_has_nan, results))
            ):
                return [*map(interpreter.placed, results, types)], None, None, []
            if runs[jaxpr] == OFTEN + 1:
                # JAX remembers that there was no compiled program to call, and would
                # take its slow way from Python to it from now on: 0.5 instead of 0.03 ms.
                forget_calls()
        return by_jax(*args, jaxpr=jaxpr, **params)

    pjit._pjit_call_impl_python = by_numpy_or_jax


def _is_small(program) -> bool:
    """Whether all equations are in the tables, and at most one of them rounds."""
    equations = [*_equations(program)]
    names = [equation.name for equation in equations]
    return (
        len(equations) <= LONGEST
        and sum(name in ROUNDING for name in names) <= 1
        # XLA multiplies by the inverse of a scalar that divides an array.
        and not {"div", "broadcast_in_dim"} <= {*names}
        and all(map(_has_same_bits, equations))
    )


def _equations(program):
    for equation in interpreter.opened(program)[2]:
        if equation.name in CALLS:
            nested = interpreter.parameters(equation, [CALLS[equation.name]])
            yield from _equations(*nested)
        else:
            yield equation


def _has_same_bits(equation) -> bool:
    variables = *equation.inputs, *equation.outputs
    dtypes = [x.aval.dtype for x in variables]
    if any(jnp.issubdtype(x, jax.dtypes.extended) for x in dtypes):
        return False
    if any(jnp.issubdtype(x, np.complexfloating) for x in dtypes):
        return equation.name in MOVING - {"convert_element_type"}
    if equation.name == "div":  # not by a constant, nor by a scalar: see above
        x, y = equation.inputs
        is_constant = isinstance(y, Literal)
        return not is_constant and x.aval.shape == y.aval.shape
    return equation.name in ROUNDING | EXACT | MOVING


def _is_usual(params) -> bool:
    """No argument is given away, and nothing asks for a device or for all results."""
    config = jax.config
    return not (
        _is_compiled.get()
        or any(params["donated_invars"])
        or params["compiler_options_kvs"]
        or not params["ctx_mesh"].empty
        or any(hasattr(x, "device_set") for x in params["out_shardings"])
        or any(hasattr(x, "device_set") for x in params["in_shardings"])
        or config.jax_debug_infs
        or config.jax_default_device
    )


def _is_plain(x) -> bool:
    """A small array that is on no device of its own."""
    if isinstance(x, jax.Array):
        if jnp.issubdtype(x.dtype, jax.dtypes.extended):
            return False
        return not x.is_deleted() and not x.committed and x.size <= LARGEST
    return isinstance(x, bool | int | float | np.ndarray | np.generic)


def _can_be_made(type_) -> bool:
    """Not of 64 bits, if JAX makes no such arrays here: it does inside programs."""
    return type_.dtype == jax.dtypes.canonicalize_dtype(type_.dtype)


def _computed(program, args, types_of_outputs) -> list | None:
    types = program.in_avals
    if not all(map(_can_be_made, (*types, *types_of_outputs))):
        return None
    args = [np.asarray(x, t.dtype) for x, t in zip(args, types, strict=True)]
    try:
        results = interpreter.without_jax(program, args)
    except interpreter.LeftToJAX:
        return None
    return None if any(map(_has_subnormals, (*args, *results))) else results


def _has_nan(x) -> bool:
    x = np.asarray(x)
    return bool(jnp.issubdtype(x.dtype, jnp.inexact) and np.isnan(x).any())


def _has_subnormals(x) -> bool:
    x = np.asarray(x)
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return False
    with np.errstate(invalid="ignore"):
        is_subnormal = (x != 0) & (abs(x) < jnp.finfo(x.dtype).tiny)
    return bool(is_subnormal.any())
