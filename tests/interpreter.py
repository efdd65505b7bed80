"""Runs what JAX traces without compiling it.

A few steps of a tiny model take a hundred times as long to compile as to run, and few
laws are about the compiler. So programs are traced as usual, and NumPy does the
arithmetic. JAX runs everything else, one operation at a time: operations that are more
than arithmetic, and those that NumPy might round differently.

Compiling everything takes 2.1 times as much time of the processor for the quick laws (98
instead of 47 s), and 3.1 times as much for the slow ones (441 instead of 142 s, for 1,500
of them). This is with JAX 0.12 and an empty compilation cache, as in `.ci/run`. One
program for several rows does not help: steps of 27 rows take 10.9 s with a program for
each, 10.1 s with a program for every five, and 4.7 s here.

JAX promises nothing about the programs that it traces. The tables at the end of this
file have the names of equations and parameters that the tests read from them.
"""

import contextlib
import contextvars
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax._src.interpreters.pxla import batched_device_put
from jax.extend.core import Literal

from . import operations


class _Result(eqx.Module):
    """What a program returns: arrays, and everything else, which tracing determines."""

    arrays: Any
    others: Any = eqx.field(static=True)


def interpreted(function: Callable) -> Callable:
    """Traces for the same arguments as `eqx.filter_jit`, but does not compile."""

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
        structure = jax.tree.structure(program.out_info)
        with np.errstate(all="ignore"):
            inputs = [_of_numpy(x) for x in jax.tree.leaves(arrays)]
            outputs = _run(program.jaxpr, inputs)
        result = structure.unflatten(map(placed, outputs, program.jaxpr.out_avals))
        return eqx.combine(result.arrays, result.others)

    return call


# The platform whose branches a program takes.
_platform = contextvars.ContextVar("platform", default="cpu")


@contextlib.contextmanager
def on_an_accelerator(platform: str = "tpu"):
    """In this context, programs take the branches for an accelerator."""
    token = _platform.set(platform)
    try:
        yield
    finally:
        _platform.reset(token)


_rounds_factors = contextvars.ContextVar("rounds_factors", default=False)


@contextlib.contextmanager
def coarse_products():
    """In this context, products round their factors to bfloat16, as a TPU does.

    Those that ask for a precision do not.
    """
    token = _rounds_factors.set(True)
    try:
        yield
    finally:
        _rounds_factors.reset(token)


class LeftToJAX(Exception):
    """NumPy cannot compute this, or not the same bits."""


def without_jax(program: Any, args: Sequence) -> list:
    """The results of a program, or `LeftToJAX`."""
    token = _has_jax.set(False)
    try:
        with np.errstate(all="ignore"):
            return _run(program, args)
    finally:
        _has_jax.reset(token)


_has_jax = contextvars.ContextVar("has_jax", default=True)


def _of_numpy(x):
    is_extended = jnp.issubdtype(x.dtype, jax.dtypes.extended)
    return x if is_extended else np.asarray(x)


def placed(x, type_) -> jax.Array:
    """A new array of a given type on the default device.

    It takes a tenth of the time of `jax.device_put`. A program that returns its argument
    would be as fast, once it is compiled for the shape.
    """
    # Random keys, and derivatives with respect to integers, which NumPy holds.
    if isinstance(x, jax.Array) or type_.dtype == jax.dtypes.float0:
        return x
    dtype = jax.dtypes.canonicalize_dtype(type_.dtype)
    device = jax.config.jax_default_device or jax.local_devices()[0]
    kind = "pinned_host" if type_.memory_space == jax.memory.Space.Host else None
    type_and_place = _type_and_place(np.shape(x), dtype, type_.weak_type, device, kind)
    new = np.array(x, dtype, order="C")
    return batched_device_put(*type_and_place, [new], [device], committed=False)


@functools.cache
def _type_and_place(shape, dtype, is_weak, device, kind):
    memory = jax.memory.Space.Host if kind else jax.memory.Space.Device
    type_ = jax.core.ShapedArray(shape, dtype, weak_type=is_weak, memory_space=memory)
    return type_, jax.sharding.SingleDeviceSharding(device, memory_kind=kind)


def _run(program: Any, args: Sequence) -> list:
    consts, inputs, equations, outputs = opened(program)
    values = {**consts, **dict(zip(inputs, args, strict=True))}
    read = lambda x: _literal(x) if isinstance(x, Literal) else values[x]
    for equation in equations:
        results = _apply(equation, [read(x) for x in equation.inputs])
        values.update(zip(equation.outputs, results, strict=True))
    return [read(x) for x in outputs]


def _literal(x):
    return np.asarray(x.val, x.aval.dtype)


def _apply(equation, args):
    if equation.name in SAME:
        return args
    if equation.name in NESTED:
        rule, *names = NESTED[equation.name]
        return rule(args, *parameters(equation, names))
    result = _by_numpy(equation, args)
    if result is None:
        return _by_jax(equation, args)
    return result if isinstance(result, list) else [result]


def _by_numpy(equation, args):
    """The result, or `None` if JAX has to compute it."""
    if any(isinstance(x, jax.Array) for x in args):  # random keys
        return None
    if equation.name in ARITHMETIC:
        return ARITHMETIC[equation.name](*args)
    if equation.name in OTHERS:
        rule, *names = OTHERS[equation.name]
        return rule(*args, *parameters(equation, names))
    return None


def _by_jax(equation, args):
    if not _has_jax.get():
        raise LeftToJAX
    if equation.name not in WHOLE and programs_in(equation):
        raise NotImplementedError(f"programs in {equation.name}: no rule in `NESTED`")
    is_product = equation.name == "dot_general"
    if is_product and _rounds_factors.get() and equation.params["precision"] is None:
        args = [x.astype(jnp.bfloat16).astype(x.dtype) for x in args]
    results = equation.primitive.bind(*args, **equation.params)
    results = results if isinstance(results, list | tuple) else [results]
    return [_of_numpy(x) for x in results]


#
# Programs within programs
#


def _call(args, program):
    return _run(program, args)


def _cond(args, branches):
    index, *args = args
    return _run(branches[min(max(int(index), 0), len(branches) - 1)], args)


def _while(args, condition, condition_consts, body, body_consts):
    first, args = args[:condition_consts], args[condition_consts:]
    second, carry = args[:body_consts], args[body_consts:]
    while True:
        (going_on,) = _run(condition, [*first, *carry])
        if not np.any(going_on):
            return carry
        new = _run(body, [*second, *carry])
        carry = [_select(going_on, *pair) for pair in zip(new, carry, strict=True)]


def _select(which, new, old):
    """In a mapped loop, only elements whose own condition holds take new values."""
    if not np.ndim(which):
        return new
    return np.where(np.reshape(which, [*which.shape, *[1] * (new.ndim - 1)]), new, old)


def _scan(args, body, length, is_reversed, counts):
    consts, args = args[: counts[0]], args[counts[0] :]
    carry, stacked = args[: counts[1]], args[counts[1] :]
    outputs = []
    for i in reversed(range(length)) if is_reversed else range(length):
        results = _run(body, [*consts, *carry, *(x[i] for x in stacked)])
        carry = results[: counts[1]]
        outputs.append(results[counts[1] :])
    in_turn = outputs[::-1] if is_reversed else outputs
    return [*carry, *(_stack(leaves) for leaves in zip(*in_turn, strict=True))]


def _stack(leaves):
    is_numpy = not isinstance(leaves[0], jax.Array)
    return np.stack(leaves) if is_numpy else jnp.stack(leaves)


def _platform_index(platforms):
    """The index of the platform's own branch, or of the default one.

    If there is neither, it is the index of the first branch for another accelerator.
    """
    mine = _platform.get()
    for fits in (
        lambda x: x is not None and mine in x,
        lambda x: x is None,
        lambda x: "cpu" not in x,
    ):
        if any(map(fits, platforms)):
            return np.int32([*map(fits, platforms)].index(True))
    raise NotImplementedError(f"a program for {platforms}, not for {mine}")


class Equation(NamedTuple):
    name: str
    primitive: Any
    params: Mapping[str, Any]
    inputs: Sequence
    outputs: Sequence


def parameters(equation: Equation, names: Sequence[str | Callable]) -> list:
    """The parameters with these names; for a function, its value for the equation."""
    params = equation.params
    return [params[x] if isinstance(x, str) else x(equation) for x in names]


def programs_in(equation: Equation) -> list:
    """The programs among the parameters of an equation."""
    leaves = jax.tree.leaves(dict(equation.params), is_leaf=_is_program)
    return [x for x in leaves if _is_program(x)]


#
# What is read from traced programs, as of JAX 0.10 and 0.12
#


def _is_program(x):
    return hasattr(x, "eqns")


@functools.lru_cache(maxsize=128)  # for loops
def opened(program: Any) -> tuple[Mapping, Sequence, Sequence[Equation], Sequence]:
    """The constants of a program, its inputs, equations and outputs."""
    # Until JAX 0.10, a program that has no constants may lack the attribute.
    consts = map(_of_numpy, program.consts if program.constvars else ())
    equations = [
        Equation(x.primitive.name, x.primitive, x.params, x.invars, x.outvars)
        for x in program.eqns
    ]
    known = dict(zip(program.constvars, consts, strict=True))
    return known, program.invars, equations, program.outvars


def is_condition(equation: Equation) -> bool:
    """Whether a value, and not the platform, decides which branch is taken."""
    return equation.name == "cond" and "branches_platforms" not in equation.params


def _scan_counts(equation):
    """How many inputs of a `scan` are constant, and how many it carries.

    Until JAX 0.10, the parameters `num_consts` and `num_carry` have these numbers;
    since then, the trees `ft_in` and `ft_out` do. Shapes work for both: a stacked array
    has one more axis outside the body than inside it.
    """
    _, inputs, _, outputs = opened(*parameters(equation, ["jaxpr"]))
    ndim = lambda x: x.aval.ndim
    stacked = lambda xs, inner: sum(map(operator.gt, map(ndim, xs), map(ndim, inner)))
    carried = len(outputs) - stacked(equation.outputs, outputs)
    return len(inputs) - stacked(equation.inputs, inputs) - carried, carried


# Equations with programs: what runs them, and the names of the parameters that it takes.
NESTED = {
    "closed_call": (_call, "call_jaxpr"),  # JAX 0.10
    "cond": (_cond, "branches"),
    "custom_jvp_call": (_call, "call_jaxpr"),
    "custom_vmap_call": (_call, "call"),
    "custom_vjp_call": (_call, "call_jaxpr"),
    "eval_jaxpr": (_call, "call_jaxpr"),  # JAX 0.12
    "jit": (_call, "jaxpr"),
    "remat2": (_call, "jaxpr"),  # shown as `checkpoint`
    "scan": (_scan, "jaxpr", "length", "reverse", _scan_counts),
    "while": (_while, "cond_jaxpr", "cond_nconsts", "body_jaxpr", "body_nconsts"),
}
# Equations that JAX runs together with the programs that they hold.
WHOLE = {
    "custom_linear_solve",
    "linear_call",
    "reduce",
    "scatter",
    "scatter-add",
    "scatter-max",
    "scatter-min",
    "scatter-mul",
    "scatter-sub",
}
SAME = {"copy", "optimization_barrier", "stop_gradient"}
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
# Other equations: what computes them, and the names of the parameters that it takes.
OTHERS = {
    "broadcast_in_dim": (operations.broadcast_in_dim, "shape", "broadcast_dimensions"),
    "concatenate": (lambda *args: np.concatenate(args[:-1], args[-1]), "dimension"),
    "conj": (np.conj,),
    "convert_element_type": (operations.convert_element_type, "new_dtype"),
    "div": (operations.div,),
    "dynamic_slice": (operations.dynamic_slice, "slice_sizes"),
    "integer_pow": (operations.integer_pow, "y"),
    "iota": (operations.iota, "dtype", "shape", "dimension"),
    "pad": (operations.pad, "padding_config"),
    "platform_index": (_platform_index, "platforms"),
    "reduce_and": (functools.partial(operations.reduce, np.logical_and), "axes"),
    "reduce_max": (functools.partial(operations.reduce, np.maximum), "axes"),
    "reduce_min": (functools.partial(operations.reduce, np.minimum), "axes"),
    "reduce_or": (functools.partial(operations.reduce, np.logical_or), "axes"),
    "reduce_sum": (functools.partial(operations.reduce, np.add), "axes"),
    "reshape": (operations.reshape, "new_sizes", "dimensions"),
    "rev": (np.flip, "dimensions"),
    "select_n": (operations.select_n,),
    "shift_right_logical": (operations.shift_right_logical,),
    "slice": (operations.sliced, "start_indices", "limit_indices", "strides"),
    "split": (operations.split, "sizes", "axis"),
    "sqrt": (operations.sqrt,),
    "squeeze": (np.squeeze, "dimensions"),
    "stack": (lambda *args: np.stack(args[:-1], args[-1]), "axis"),
    "transpose": (np.transpose, "permutation"),
    "unstack": (operations.unstack, "axis"),
}
