"""Runs what JAX traces without compiling it.

Some steps of a tiny model take a hundred times as long to compile as to run, and few
laws are about the compiler. So their programs are traced as ever, and then NumPy does the
arithmetic. What is more than arithmetic, or might be rounded in another way, is done by
JAX, one operation at a time.
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal


class _Result(eqx.Module):
    """What a program returns: arrays, and all else, which is known when it is traced."""

    arrays: Any
    others: Any = eqx.field(static=True)


def interpreted(function: Callable) -> Callable:
    """`eqx.filter_jit`, but for the compilation: it traces for the same arguments."""

    def traced(arrays, others):
        leaves, treedef = others
        args = eqx.combine(arrays, jax.tree.unflatten(treedef, leaves))
        return _Result(*eqx.partition(function(*args), eqx.is_array))

    jitted = jax.jit(traced, static_argnums=1)

    @functools.wraps(function)
    def call(*args):
        arrays, others = eqx.partition(args, eqx.is_array)
        leaves, treedef = jax.tree.flatten(others)
        program = jitted.trace(arrays, (tuple(leaves), treedef))
        result = jax.tree.structure(program.out_info).unflatten(
            evaluate(program.jaxpr, jax.tree.leaves(arrays))
        )
        return eqx.combine(result.arrays, result.others)

    return call


# Whether a program takes the branches that are not for a CPU.
_is_elsewhere = contextvars.ContextVar("is_elsewhere", default=False)


@contextlib.contextmanager
def on_an_accelerator():
    """Here, programs are interpreted as they are compiled for an accelerator."""
    token = _is_elsewhere.set(True)
    try:
        yield
    finally:
        _is_elsewhere.reset(token)


def evaluate(program: ClosedJaxpr, args: Sequence) -> list[jax.Array]:
    """The results of a program, as arrays of JAX."""
    with np.errstate(all="ignore"):
        results = _run(program, [_of_numpy(x) for x in args])
    return [_of_jax(*pair) for pair in zip(results, program.out_avals, strict=True)]


def _of_numpy(x):
    is_extended = jnp.issubdtype(x.dtype, jax.dtypes.extended)
    return x if is_extended else np.asarray(x)


def _of_jax(x, aval):
    x = _given(x)
    if not getattr(aval, "weak_type", False):
        return x
    return jax.lax.convert_element_type_p.bind(
        x, new_dtype=x.dtype, weak_type=True, sharding=None
    )


# Takes a fifth of the time of `jnp.asarray`.
_given = jax.jit(lambda x: x)


def _run(program: ClosedJaxpr | Jaxpr, args: Sequence) -> list:
    jaxpr, consts = program, ()
    if isinstance(program, ClosedJaxpr):
        jaxpr, consts = program.jaxpr, [_of_numpy(x) for x in program.consts]
    values = dict(zip(jaxpr.constvars, consts, strict=True))
    values.update(zip(jaxpr.invars, args, strict=True))

    def read(x):
        return np.asarray(x.val, x.aval.dtype) if isinstance(x, Literal) else values[x]

    for equation in jaxpr.eqns:
        results = _apply(equation, [read(x) for x in equation.invars])
        values.update(zip(equation.outvars, results, strict=True))
    return [read(x) for x in jaxpr.outvars]


def _apply(equation: JaxprEqn, args: list) -> Sequence:
    primitive, params = equation.primitive, equation.params
    if primitive.name in NESTED:
        return NESTED[primitive.name](*args, **params)
    if primitive.name in SAME:
        return args
    result = _by_numpy(primitive.name, args, params)
    if result is None:
        result = primitive.bind(*args, **params)
        if primitive.multiple_results:
            return [_of_numpy(x) for x in result]
        result = _of_numpy(result)
    return result if primitive.multiple_results else [result]


def _by_numpy(name, args, params):
    """`None` if JAX has to do it."""
    if any(isinstance(x, jax.Array) for x in args):  # random keys
        return None
    if name in ARITHMETIC:
        return ARITHMETIC[name](*args)
    if name in REDUCTIONS and args[0].size:
        return REDUCTIONS[name].reduce(args[0], params["axes"], args[0].dtype)
    if name in OTHERS:
        return OTHERS[name](*args, **params)
    return None


#
# Programs within programs
#


def _call(*args, jaxpr, **_):
    return _run(jaxpr, args)


def _custom_call(*args, call_jaxpr, **_):
    return _run(call_jaxpr, args)


def _cond(index, *args, branches, branches_platforms=None, **_):
    if branches_platforms is not None and _is_elsewhere.get():
        index = branches_platforms.index(None)
    return _run(branches[min(max(int(index), 0), len(branches) - 1)], args)


def _while(*args, cond_nconsts, cond_jaxpr, body_nconsts, body_jaxpr):
    cond_consts, args = args[:cond_nconsts], args[cond_nconsts:]
    body_consts, carry = args[:body_nconsts], args[body_nconsts:]
    while True:
        (going_on,) = _run(cond_jaxpr, [*cond_consts, *carry])
        if not np.any(going_on):
            return carry
        new = _run(body_jaxpr, [*body_consts, *carry])
        carry = [_select(going_on, *pair) for pair in zip(new, carry, strict=True)]


def _select(which, new, old):
    """Mapped over, a loop goes on where its condition holds."""
    if not np.ndim(which):
        return new
    return np.where(np.reshape(which, [*which.shape, *[1] * (new.ndim - 1)]), new, old)


def _scan(*args, jaxpr, length, reverse, num_consts, num_carry, **_):
    consts, args = args[:num_consts], args[num_consts:]
    carry, stacked = args[:num_carry], args[num_carry:]
    outputs = []
    for i in reversed(range(length)) if reverse else range(length):
        results = _run(jaxpr, [*consts, *carry, *(x[i] for x in stacked)])
        carry = results[:num_carry]
        outputs.append(results[num_carry:])
    in_turn = outputs[::-1] if reverse else outputs
    return [*carry, *(_stack(leaves) for leaves in zip(*in_turn, strict=True))]


def _stack(leaves):
    is_numpy = not isinstance(leaves[0], jax.Array)
    return np.stack(leaves) if is_numpy else jnp.stack(leaves)


NESTED = {
    "checkpoint": _call,
    "closed_call": _custom_call,
    "cond": _cond,
    "custom_jvp_call": _custom_call,
    "custom_vjp_call": _custom_call,
    "jit": _call,
    "scan": _scan,
    "while": _while,
}

#
# Single operations
#

SAME = {
    "copy",
    "copy_p",
    "materialized",
    "optimization_barrier",
    "shard_alike",
    "stop_gradient",
}
ARITHMETIC = {
    "abs": np.abs,
    "add": np.add,
    "add_any": np.add,
    "and": np.bitwise_and,
    "eq": np.equal,
    "ge": np.greater_equal,
    "gt": np.greater,
    "imag": np.imag,
    "is_finite": np.isfinite,
    "le": np.less_equal,
    "lt": np.less,
    "max": np.maximum,
    "min": np.minimum,
    "mul": np.multiply,
    "ne": np.not_equal,
    "neg": np.negative,
    "not": np.invert,
    "or": np.bitwise_or,
    "real": np.real,
    "rem": np.fmod,
    "shift_left": np.left_shift,
    "sign": np.sign,
    "square": np.square,
    "sub": np.subtract,
    "xor": np.bitwise_xor,
}
REDUCTIONS = {
    "reduce_and": np.logical_and,
    "reduce_max": np.maximum,
    "reduce_min": np.minimum,
    "reduce_or": np.logical_or,
    "reduce_sum": np.add,
}


def _is_real_float(dtype):
    return jnp.issubdtype(dtype, jnp.floating)


def _div(x, y):
    return np.divide(x, y) if jnp.issubdtype(x.dtype, jnp.inexact) else None


def _sqrt(x, **_):
    return np.sqrt(x) if _is_real_float(x.dtype) else None


def _shift_right_logical(x, y):
    return np.right_shift(x, y) if x.dtype.kind == "u" else None


def _select_n(which, *cases, **_):
    return np.where(which, cases[1], cases[0]) if len(cases) == 2 else None


def _convert_element_type(x, new_dtype, **_):
    """Numbers that are out of the range of integers are left to JAX."""
    is_safe = _is_real_float(x.dtype) and _is_real_float(new_dtype)
    return x.astype(new_dtype) if is_safe or x.dtype.kind in "biu" else None


def _broadcast_in_dim(x, *_, shape, broadcast_dimensions, **__):
    axes = [1] * len(shape)
    for axis, size in zip(broadcast_dimensions, np.shape(x), strict=True):
        axes[axis] = size
    return np.broadcast_to(np.reshape(x, axes), shape)


def _slice(x, start_indices, limit_indices, strides, **_):
    strides = strides or [1] * len(start_indices)
    return x[tuple(map(slice, start_indices, limit_indices, strides))]


def _pad(x, value, padding_config):
    low, high, between = np.array(padding_config, int).reshape(-1, 3).T
    if min([0, *low, *high]) < 0:
        return None
    size = np.maximum((np.array(np.shape(x), int) - 1) * (between + 1) + 1, 0)
    padded = np.full(low + size + high, value)
    padded[tuple(map(slice, low, low + size, between + 1))] = x
    return padded


def _reshape(x, *_, new_sizes, **__):
    return np.reshape(x, new_sizes)


def _unstack(x, axis):
    return [*np.moveaxis(x, axis, 0)]


def _split(x, sizes, axis):
    return np.split(x, np.cumsum(sizes)[:-1], axis)


OTHERS = {
    "after": lambda x, first: x,
    "broadcast_in_dim": _broadcast_in_dim,
    "concatenate": lambda *args, dimension: np.concatenate(args, dimension),
    "conj": lambda x, input_dtype: np.conj(x),
    "convert_element_type": _convert_element_type,
    "div": _div,
    "pad": _pad,
    "reshape": _reshape,
    "safe_sqrt": _sqrt,
    "select_n": _select_n,
    "shift_right_logical": _shift_right_logical,
    "slice": _slice,
    "split": _split,
    "sqrt": _sqrt,
    "squeeze": lambda x, dimensions: np.squeeze(x, dimensions),
    "stack": lambda *args, axis: np.stack(args, axis),
    "transpose": lambda x, permutation: np.transpose(x, permutation),
    "unstack": _unstack,
}
