"""Divides the matrices of a batch between devices."""

import abc
import contextlib
import dataclasses
import math
from collections.abc import Callable, Generator, Hashable, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec as P

from .._trees.sharding import sharded_like
from .batches import is_module, make_batches


class Division(NamedTuple):
    """Axes of a mesh: each device along them computes its share of the matrices.

    `is_of_leaves`: whether the first axis is one along which leaves were joined, which no
    mesh divides.
    """

    mesh: Mesh | AbstractMesh
    names: tuple[str, ...]
    is_of_leaves: bool = False

    @property
    def size(self) -> int:
        return math.prod(self.mesh.shape[name] for name in self.names)

    @property
    def spec(self) -> P:
        """For arrays whose first axis is divided."""
        return P(self.names)

    def pad(self, count: int) -> int:
        """The number of matrices with padding: JAX divides only equal shares."""
        return math.ceil(count / self.size) * self.size

    def suits(self, count: int) -> bool:
        """Whether few devices would be idle with so many matrices."""
        return self.pad(count) < 2 * count

    def best(self, sizes: Sequence[int]) -> int:
        """The axis that is divided best; the last of them, which may be of experts."""
        waste = {i: self.pad(n) / n for i, n in enumerate(sizes)}
        return min(reversed(waste), key=waste.__getitem__)

    def batches(self, keys: Sequence[Hashable], elements: Sequence[int], limit: int):
        """Like `make_batches`, where `limit` is what each device may hold.

        All batches but the last of a key are multiples of the number of devices. Each one
        is exchanged by itself, while devices compute another one.
        """
        n = self.size
        for group in make_batches(keys, elements, sum(elements)):
            whole = len(group) // n * n
            count = max(1, limit // max(1, elements[group[0]])) * n
            for start in range(0, whole, count):
                yield group[start : min(start + count, whole)]
            if whole < len(group):
                yield group[whole:]

    def divide(self, x: Any, axis: int, stack: int = 1, mode: str = "wrap") -> Any:
        """Divides an axis of matrices between the devices, and moves it to the front.

        The first `stack` axes of `x` are not axes of a matrix, and XLA chooses whether
        the others of them are divided. `mode`: of the padding, as in `jnp.pad`.
        """
        x = jnp.moveaxis(self.gather(x), axis, 0)
        padding = [(0, self.pad(len(x)) - len(x))] + [(0, 0)] * (x.ndim - 1)
        x = jnp.pad(x, padding, mode=mode) if any(padding[0]) else x
        return self._place(x, self.names, stack)

    def restore(self, x: Any, axis: int, count: int, stack: int = 1) -> Any:
        """The inverse of `divide`, for so many matrices."""
        # XLA would divide matrices in between.
        x = self._place(x, self.names, stack)
        x = lax.slice_in_dim(x, 0, count) if count < len(x) else x
        return self.gather(jnp.moveaxis(x, 0, axis))

    def gather(self, x: Any) -> Any:
        """`x`, undivided along its first axis, if that is of leaves.

        Otherwise, XLA would move all arrays from which `x` is computed.
        """
        return self._place(x, None, x.ndim) if self.is_of_leaves else x

    def _place(self, x: Any, first: Any, stack: int) -> Any:
        """`x` with its first axis divided like this; XLA chooses for the next ones."""
        spec = P(first, *[P.UNCONSTRAINED] * (stack - 1))
        return lax.with_sharding_constraint(x, NamedSharding(self._mesh_here(), spec))

    def _mesh_here(self) -> Any:
        here = jax.sharding.get_abstract_mesh()
        return self.mesh if here.empty else here

    def compute(self, fn, columns: Sequence[Any], stack: Sequence[int]) -> Any:
        """`fn(*columns)`, where an axis of the stack is divided between the devices.

        `columns` are modules and trees of arrays, which begin with the axes of the
        stack, of sizes `stack`. With few matrices, XLA chooses how to divide them.
        """
        axis, free = self.best(stack), len(stack)
        count = stack[axis]
        if not self.suits(count):
            return fn(*columns)
        modules, arrays = eqx.partition(columns, is_module, is_leaf=is_module)

        def of_share(arrays):
            return fn(*eqx.combine(modules, arrays, is_leaf=is_module))

        run = self.on_shares(of_share, (self.spec,), self.spec, self.names)
        out = run(jax.tree.map(lambda x: self.divide(x, axis, free), arrays))
        return jax.tree.map(lambda x: self.restore(x, axis, count, free), out)

    def on_shares(self, fn, in_specs, out_specs, names: Sequence[str] = ()) -> Callable:
        """`fn` on each device, with its share of the arguments, and no communication.

        Other axes of the mesh than `names` are left to XLA; by default, none are.
        """
        mesh = self._mesh_here()
        mapped = jax.shard_map(
            fn,
            mesh=mesh,
            in_specs=in_specs,
            out_specs=out_specs,
            axis_names={*(names or mesh.axis_names)},
            check_vma=False,
        )
        return jax.jit(mapped)


class AbstractWhole(eqx.Module):
    """The part of an equation that needs a whole matrix: a function of it.

    Devices exchange only the matrices and the results. All other arrays of the equation
    stay where they are.

    **Attributes:**

    - `division`: how devices divide the matrices, if they do.
    """

    division: Division | None = eqx.field(static=True, default=None, kw_only=True)

    @abc.abstractmethod
    def of_whole(self, x: Any, eps: Any) -> Any:
        """The result for a matrix, of the same shape."""

    def __call__(self, x: Any, *eps: Any) -> Any:
        """`of_whole`, where a mapped axis of `x` is divided between the devices."""
        if self.division is None:
            return self.of_whole(x, *eps)
        arrays, others = eqx.partition((self, eps), eqx.is_array)

        def of_whole(x, arrays):
            own, eps = eqx.combine(arrays, others)
            return own.of_whole(x, *eps)

        return _divide_mapped(of_whole, self.division)(x, arrays)


def pass_division(division, shared, stack) -> dict[str, Any]:
    """The shared values of an equation: such parts divide one of the mapped axes."""
    # What is left of `custom_vmap` without such an axis has no reverse-mode derivative.
    if division is None or not any(map(division.suits, stack)):
        return shared
    is_part = lambda x: isinstance(x, AbstractWhole)
    replace = lambda x: dataclasses.replace(x, division=division) if is_part(x) else x
    return {name: replace(x) for name, x in shared.items()}


def _divide_mapped(fn: Callable, division: Division) -> Callable:
    """`fn(x, arrays)`, which divides the innermost mapped axis of `x` that suits."""
    run = jax.custom_batching.custom_vmap(lambda x, arrays: fn(x, arrays))

    @run.def_vmap
    def of_many(size, is_mapped, x, arrays):
        axes = jax.tree.map(lambda is_mapped: 0 if is_mapped else None, is_mapped)
        mapped = jax.vmap(fn, axes)
        if not division.suits(size) or axes[0] is None or jax.tree.leaves(axes[1]):
            return _divide_mapped(mapped, division)(x, arrays), True
        out = division.compute(lambda x: mapped(x, arrays), [x], (size,))
        return out if division.is_of_leaves else sharded_like(x, out), True

    return run


# A context, as for a mesh in JAX, because `init` has no extra arguments, and optimizers
# build their parts in each call. A copy of an optimizer with the division in each part
# would not be what other wrappers expect: `eqopt.Scheduled`, for example, keeps values at
# key paths in it. Only `AbstractMatrixwise` reads it, and passes it on as an argument.
_CURRENT: ContextVar[Division | None] = ContextVar("_CURRENT", default=None)


@contextlib.contextmanager
def use_division(division: Division | None) -> Generator[None, None, None]:
    """In this context, transformations of matrices have this division."""
    token = _CURRENT.set(division)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def current_division() -> Division | None:
    return _CURRENT.get()
