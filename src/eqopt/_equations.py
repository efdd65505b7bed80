"""Equations: the maths of one leaf, and the compiled kernels that run them."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from ._cpu.order import computed_once, reordered
from ._storage import has_stored, is_stored
from ._typecheck import checked, no_type_check
from .numerics import common_dtype


class Equation:
    """What [`eqopt.equation`][] makes of a function of arrays."""

    is_of_matrices = False

    def __init__(self, fn: Callable):
        parameters = inspect.signature(fn).parameters.values()
        leaves = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        self.name = fn.__name__
        self.shared = tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
        if not leaves or len(leaves) + len(self.shared) != len(parameters):
            raise TypeError(
                f"The equation `{self.name}` must have a signature such as "
                "`(g, mu, p, *, decay)`: the update, then slots of the state and "
                "perhaps the parameter `p`, then keyword-only values that all leaves "
                "share."
            )
        self.leaves = tuple(leaves[1:])
        functools.update_wrapper(self, fn)
        fn = inspect.unwrap(fn)  # the import hook may have been here before
        is_annotated = bool(getattr(fn, "__annotations__", None))
        self._fn = checked(fn) if is_annotated else fn

    def __call__(self, *leaves: Any, **shared: Any) -> Any:
        return self._fn(*leaves, **shared)

    def __repr__(self) -> str:
        return f"<equation {self.name}>"


def equation(fn: Callable) -> Equation:
    """Declares a function of arrays to be the equation of a leafwise transformation.

    The names of its arguments say where they come from, as in the paper:

    - the first one is the update of the leaf;
    - the further positional ones are the fields of the same names in the state, or the
        leaf of the parameters where the name is `p`;
    - the keyword-only ones are values that all leaves share: hyperparameters, bias
        corrections, norms. Bools, strings and functions are static, numbers are traced.

    It returns the new update, then the new value of each field of the state, in the
    order of the arguments (only the update, not a tuple, if there is none).

    Inputs are in at least float32, and results are stored in the dtypes of their slots,
    so an equation never converts a dtype. A slot may have another shape than the leaf,
    or be a small tree of arrays (for example one per axis). An equation is type-checked
    and traced once per distinct shape and dtype of the leaf, not once per leaf.

    !!! example

        ```python
        @eqopt.equation
        def heavy_ball(g, trace, *, decay):
            trace = decay * trace + g
            return trace, trace
        ```
    """
    return Equation(fn)


# How many kernels are kept, the last ones used. Some contain functions that users
# create with each new optimizer, and each takes a megabyte or more.
KERNELS = 256

# One for each function, so that kernels that use it are found again.
equation_of = functools.lru_cache(KERNELS)(Equation)

# What a kernel makes of the last update.
Result: TypeAlias = Literal["updates", "rounded updates", "params"]


class Operation(NamedTuple):
    """An equation with the static part of its arguments; hashable."""

    equation: Equation
    slots: tuple[str, ...]  # the positional names that are stored back
    packed: tuple[str, ...]  # shared floats, which travel in one vector
    loose: tuple[str, ...]  # shared values of other dtypes
    static: tuple[tuple[str, Any], ...]
    last: tuple[str, ...] = ()  # slots to compute once more after the result
    on_cpu: Equation | None = None  # what to compile for a CPU instead


class ShapeMismatch(Exception):
    """The leaves of an equation do not fit together."""


@functools.lru_cache(KERNELS)
def kernel(
    program: tuple[Operation, ...], takes_params: bool, result: Result
) -> Callable:
    """The equations of `program` one after the other, as one jitted function of a leaf.

    It takes the vector of all packed values, the update, the parameter if
    `takes_params`, then each operation's further leaves, then each operation's loose
    values. It returns the `result` and the new slots, in one flat tuple. (Tracing and
    calling a function costs time for each argument, so scalars are packed into a
    vector.)

    Between the equations, the update stays in the precision in which they compute. So
    do `"updates"` that later parts use; parameters and `"rounded updates"` are rounded.
    """
    fn = functools.partial(_evaluate, program, takes_params, result)
    name = "_".join(operation.equation.name for operation in program)
    # A partial takes any attribute, which its type does not say. The profiler shows it.
    fn.__name__ = fn.__qualname__ = f"{name}_apply" if result == "params" else name  # type: ignore
    return jax.jit(fn)


@no_type_check
def _evaluate(
    program: tuple[Operation, ...],
    takes_params: bool,
    kind: Result,
    packed: Array,
    g: Array,
    *arguments: Any,
) -> tuple:
    # Every dtype is set here, by hand, so no promotion is an accident.
    with jax.numpy_dtype_promotion("standard"):
        run = functools.partial(_run, program, takes_params, kind)
        if has_stored(arguments[takes_params:]):
            # Slots that are stored come after the result as it is, each in a branch.
            result, slots = run(packed, g, *arguments)
            return result, *slots
        on_cpu = tuple(op._replace(equation=op.on_cpu or op.equation) for op in program)
        run_on_cpu = run
        if on_cpu != program:
            run_on_cpu = functools.partial(_run, on_cpu, takes_params, kind)
        late = _late(program)
        result, slots = reordered(run, run_on_cpu, late, packed, g, *arguments)
        return result, *slots


@no_type_check
def _late(program: tuple[Operation, ...]) -> list[int]:
    """The numbers of the slots to compute again after the result, in order.

    The last operation's slots come first: they read what earlier operations store.
    """
    slots = [(i, name) for i, op in enumerate(program) for name in op.slots]
    late = []
    for i, op in reversed(list(enumerate(program))):
        names = op.last + tuple(x for x in op.slots if late and x not in op.last)
        late += [slots.index((i, name)) for name in names]
    return late


@no_type_check
def _run(
    program: tuple[Operation, ...],
    takes_params: bool,
    kind: Result,
    packed: Array,
    g: Array,
    *arguments: Any,
) -> tuple[Any, list]:
    """The result, and the new slots of all operations in one list."""
    rest = iter(arguments)
    p: Any = next(rest) if takes_params else None
    leaves = [
        [p if name == "p" else next(rest) for name in operation.equation.leaves]
        for operation in program
    ]
    real = compute_dtype(g, p, *(x for group in leaves for x in group))
    values = iter(packed.astype(real))
    u, slots_and_new = widen(g, real), []
    for operation, old in zip(program, leaves, strict=True):
        shared = {name: next(values) for name in operation.packed}
        shared |= {name: next(rest) for name in operation.loose}
        out = operation.equation(
            u, *(widen(x, real) for x in old), **shared, **dict(operation.static)
        )
        u, *new = out if isinstance(out, tuple) else (out,)
        names = zip(operation.equation.leaves, old, strict=True)
        slots = [x for name, x in names if name in operation.slots]
        _check_outputs(operation, g, u, slots, new)
        slots_and_new += zip(slots, new, strict=True)
    if kind == "params":
        if u.shape != p.shape:
            raise ShapeMismatch(f"{u.shape} is added to {p.shape}")
        u, like = widen(p, real) + u, p
    else:
        like = g if kind == "rounded updates" else widen(g, real)
    result = narrow(u, like)
    last = result
    stored = []
    for slot, new in slots_and_new:
        stored.append(jax.tree.map(functools.partial(narrow, after=last), new, slot))
        last = stored[-1]
    return result, stored


@no_type_check
def compute_dtype(*leaves: Any) -> Any:
    """The real dtype to compute in: float64 if any leaf has it, else float32."""
    found = jax.tree.leaves(leaves, is_leaf=is_stored)
    dtypes = [x.dtype for x in found if _is_inexact(x)]
    return jnp.finfo(common_dtype(jnp.float32, *dtypes)).dtype


@no_type_check
def _is_inexact(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.inexact)


@no_type_check
def widen(tree: Any, real: Any) -> Any:
    """The leaves of `tree`, loaded, in the precision of `real`, complex or not."""
    return jax.tree.map(functools.partial(_widen, real), tree, is_leaf=is_stored)


@no_type_check
def _widen(real: Any, x: Any) -> Any:
    if is_stored(x):
        x = x.load()
    if not _is_inexact(x):
        return x
    dtype = common_dtype(real, jnp.complex64) if jnp.iscomplexobj(x) else real
    # Without `jit`, for debugging, NumPy arrays are passed unchanged.
    return jnp.asarray(x).astype(dtype)


@no_type_check
def narrow(u: Array, like: Any, after: Any = None) -> Any:
    """`u`, stored like `like`; on a CPU after other work, which saves memory."""
    if jnp.iscomplexobj(u) and not jnp.issubdtype(like.dtype, jnp.complexfloating):
        raise ShapeMismatch("a complex value for a real slot")
    if is_stored(like):
        u = u if like._is_differentiable else lax.stop_gradient(u)
        return computed_once(type(like).store, like, u, after)
    return u.astype(like.dtype)


@no_type_check
def _check_outputs(
    operation: Operation, g: Array, u: Array, slots: list, new: list
) -> None:
    if len(new) != len(slots):
        raise TypeError(
            f"The equation `{operation.equation.name}` must return the update and the "
            f"new {operation.slots}, {1 + len(slots)} values; it returned "
            f"{1 + len(new)}."
        )
    old, structure = jax.tree.flatten([g, *slots], is_leaf=is_stored)
    new, new_structure = jax.tree.flatten([u, *new])
    if structure != new_structure:
        raise ShapeMismatch(f"{structure} became {new_structure}")
    for x, like in zip(new, old, strict=True):
        if x.shape != like.shape:
            raise ShapeMismatch(f"{like.shape} became {x.shape}")


@jax.jit
def pack(values: tuple) -> Array:
    """The vector of shared values that a kernel takes."""
    dtype = jax.dtypes.canonicalize_dtype(float)
    return jnp.stack([jnp.asarray(x, dtype) for x in values] or [jnp.zeros((), dtype)])
