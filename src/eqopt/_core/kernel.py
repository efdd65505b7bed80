"""Kernels: compiled functions of one leaf that fuse neighbouring equations."""

import functools
from collections.abc import Callable, Generator
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._caches import cached
from .._cpu.slots import Order, reordered
from .._trees.precision import compute_dtype, widen
from .._trees.sharding import sharded_like
from .._trees.stored import has_stored, is_stored
from .equation import Equation, ShapeMismatch, WrongResult
from .narrowing import in_two_passes, narrow


# The result of a kernel: the last update, in full precision or rounded, or the
# parameter.
Result: TypeAlias = Literal["updates", "rounded updates", "params"]


class Operation(NamedTuple):
    """An equation with the static part of its arguments; hashable."""

    equation: Equation
    slots: tuple[str, ...]  # the positional names whose new values are stored
    packed: tuple[str, ...]  # shared floats, which are passed in one vector
    loose: tuple[str, ...]  # shared values of other dtypes
    static: tuple[tuple[str, Any], ...]
    first: tuple[str, ...] = ()  # slots to store before the result
    last: tuple[str, ...] = ()  # slots to compute again after the result
    on_cpu: Equation | None = None  # the equation to compile for a CPU instead
    has_own_params: bool = False  # whether its `p` differs from the shared `p`

    @property
    def leaves(self) -> tuple[str, ...]:
        """The positional names, without the `p` that all operations share."""
        names = self.equation.leaves
        return names if self.has_own_params else tuple(x for x in names if x != "p")

    @property
    def reads_params(self) -> bool:
        """Whether it takes the `p` that all operations share."""
        return "p" in self.equation.leaves and not self.has_own_params


@cached
def kernel(
    program: tuple[Operation, ...], takes_params: bool, result: Result
) -> Callable:
    """A jitted function of one leaf that runs the equations of `program` in order.

    Its arguments are the vector of all packed values, the update, the parameter if
    `takes_params`, the other leaves of each operation, and the loose values of each
    operation. It returns the `result` and the new slots, in one flat tuple. (Tracing
    and calling a function take time for each argument, so scalars are packed into a
    vector.)

    Between the equations, the update stays in the precision in which they compute. The
    results `"updates"`, for later parts, also keep this precision. Parameters and
    `"rounded updates"` are rounded.
    """

    def fn(packed, g, *arguments):
        return _evaluate(program, takes_params, result, packed, g, *arguments)

    name = "_".join(operation.equation.name for operation in program)
    # The profiler shows this name.
    fn.__name__ = fn.__qualname__ = f"{name}_apply" if result == "params" else name
    return jax.jit(fn)


def _evaluate(
    program: tuple[Operation, ...],
    takes_params: bool,
    kind: Result,
    packed: Array,
    g: Array,
    *arguments: Any,
) -> tuple:
    # All dtypes are set explicitly here, so no promotion is accidental.
    with jax.numpy_dtype_promotion("standard"):
        run = functools.partial(_run, program, takes_params, kind)
        if has_stored(arguments[takes_params:]):
            # Slots in another storage are written after the result, each in a branch.
            result, slots = in_two_passes(run, packed, g, *arguments)
            return result, *slots
        on_cpu = tuple(op._replace(equation=op.on_cpu or op.equation) for op in program)
        for_cpu = functools.partial(_run, on_cpu, takes_params, kind)
        run_on_cpu = run if on_cpu == program else for_cpu
        order = _order(program)
        result, slots = reordered(run, run_on_cpu, order, packed, g, *arguments)
        return result, *slots


def _order(program: tuple[Operation, ...]) -> Order:
    """The order in which to store the slots of all operations, as indices.

    The slots of the last operation come first, because that operation reads values that
    earlier operations store.
    """
    slots = [(i, name) for i, op in enumerate(program) for name in op.slots]
    number = lambda i, names: [slots.index((i, name)) for name in names]
    first, last, earlier = [], [], []
    for i, op in reversed(list(enumerate(program))):
        if first or last:
            rest = [x for x in op.slots if x not in op.last + op.first]
            earlier += number(i, rest)
        first += number(i, op.first)
        last += number(i, op.last)
    return Order(tuple(first), tuple(last), tuple(earlier))


def _run(
    program: tuple[Operation, ...],
    takes_params: bool,
    kind: Result,
    packed: Array,
    *row: Any,
    keep: Callable = narrow,
) -> tuple[Any, list]:
    """Returns the result, and a list of the new slots of all operations.

    `keep(new, slot, after)` is how a new value is stored.
    """
    return _lockstep(program, takes_params, kind, packed, [row], keep=keep)[0]


@cached
def kernel_of_all(
    program: tuple[Operation, ...],
    takes_params: bool,
    kind: Result,
    treedef: Any,
    order: tuple[int, ...],
    limit: int,
) -> Callable:
    """A jitted function that returns the results of a `kernel` for each row of arguments.

    Each equation is applied to all leaves before the next equation, so that an equation
    of matrices can compute equal ones in batches of at most `limit` elements. This is for
    accelerators only.

    The function takes arrays. In the given `order`, in which arrays can occur repeatedly,
    they are the leaves of `treedef`: the packed values, and a list of the rows.
    """

    def run_all(*arrays):
        packed, rows = treedef.unflatten(arrays[k] for k in order)
        with jax.numpy_dtype_promotion("standard"):
            found = _lockstep(program, takes_params, kind, packed, rows, limit)
        return [(result, *slots) for result, slots in found]

    return jax.jit(run_all)


def _lockstep(program, takes_params, kind, packed, rows, limit=0, keep=narrow):
    runs = [_steps(program, takes_params, kind, keep, packed, *row) for row in rows]
    found = [next(run) for run in runs]
    for operation in program:
        outs = operation.equation.of_all(found, limit)
        found = [run.send(out) for run, out in zip(runs, outs, strict=True)]
    return found


def _steps(
    program: tuple[Operation, ...],
    takes_params: bool,
    kind: Result,
    keep: Callable,
    packed: Array,
    g: Array,
    *arguments: Any,
) -> Generator[Any, Any, None]:
    """Takes one leaf through a kernel, as a coroutine.

    It yields the arguments of each equation and receives the results by `send`. At the
    end, it yields the result and the new slots.
    """
    rest = iter(arguments)
    p: Any = next(rest) if takes_params else None
    leaves = [
        [next(rest) if name in op.leaves else p for name in op.equation.leaves]
        for op in program
    ]
    real = compute_dtype(g, p, *(x for group in leaves for x in group))
    values = iter(jnp.unstack(packed.astype(real)))
    u, slots_and_new = widen(g, real), []
    for operation, old in zip(program, leaves, strict=True):
        shared = {name: next(values) for name in operation.packed}
        shared |= {name: next(rest) for name in operation.loose}
        shared |= dict(operation.static)
        out = yield (u, *(widen(x, real) for x in old)), shared
        before = u
        u, *new = out if isinstance(out, tuple) else (out,)
        names = zip(operation.equation.leaves, old, strict=True)
        slots = [x for name, x in names if name in operation.slots]
        like = before if operation.equation.keeps_shape else u
        _check_outputs(operation, like, u, slots, new)
        batching = operation.equation.batching
        if batching is not None and batching.is_divided:  # back to where they were
            wide = [widen(x, real) for x in slots]
            u, new = jax.tree.map(sharded_like, (before, wide), (u, new))
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
        stored.append(jax.tree.map(functools.partial(keep, after=last), new, slot))
        last = stored[-1]
    yield result, stored


def _check_outputs(
    operation: Operation, before: Array, u: Array, slots: list, new: list
) -> None:
    if len(new) != len(slots):
        raise TypeError(
            f"The equation `{operation.equation.name}` must return the update and the "
            f"new {operation.slots}, which are {1 + len(slots)} values, but returned "
            f"{1 + len(new)}."
        )
    turned = f"the equation `{operation.equation.name}` turned "
    old, structure = jax.tree.flatten([before, *slots], is_leaf=is_stored)
    new, new_structure = jax.tree.flatten([u, *new])
    if structure != new_structure:
        raise WrongResult(f"{turned}{structure} into {new_structure}")
    for x, like in zip(new, old, strict=True):
        if x.shape != like.shape:
            shapes = f"an array of shape {like.shape} into one of shape {x.shape}"
            raise WrongResult(turned + shapes)


@jax.jit
def pack(values: tuple) -> Array:
    """Packs shared values into the vector that a kernel takes."""
    dtype = jax.dtypes.canonicalize_dtype(float)
    return jnp.stack([jnp.asarray(x, dtype) for x in values] or [jnp.zeros((), dtype)])
