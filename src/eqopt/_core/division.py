"""Divides the matrices of a batch between devices."""

import abc
import contextlib
import dataclasses
import math
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

import equinox as eqx
import jax
from jax import lax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec as P

from .._trees.sharding import sharded_like
from .batches import batches


class Division(NamedTuple):
    """Axes of a mesh: each device along them computes its share of the matrices.

    `is_of_leaves`: whether a leaf has only one matrix, so that no mesh divides the axis
    along which matrices are joined before and after this.
    """

    mesh: Mesh | AbstractMesh
    names: tuple[str, ...]
    is_of_leaves: bool = False

    @property
    def size(self) -> int:
        return math.prod(self.mesh.shape[name] for name in self.names)

    def batches(
        self, keys: Sequence[Hashable], elements: Sequence[int], limit: int
    ) -> Iterator[list[int]]:
        """Like `batches`, where `limit` is what each device may hold.

        All batches but the last of a key are multiples of the number of devices.
        """
        n = self.size
        for group in batches(keys, elements, sum(elements)):
            whole = len(group) // n * n
            count = max(1, limit // max(1, elements[group[0]])) * n
            for start in range(0, whole, count):
                yield group[start : min(start + count, whole)]
            if whole < len(group):
                yield group[whole:]

    def run(self, fn: Callable, columns: Sequence[Any], stack: tuple[int, ...]) -> Any:
        """`fn(*columns)`, where an axis of the stack is divided between the devices.

        `columns` are modules and trees of arrays, which begin with the axes of the
        stack, of sizes `stack`. With few matrices, XLA chooses how to divide them.
        """
        axis = self._axis(stack)
        if axis is None:
            return fn(*columns)
        lacks = -stack[axis] % self.size

        def there(x):
            x = self.together(x)
            if lacks:  # JAX divides only equal shares; so some matrices occur twice
                again = lax.slice_in_dim(x, 0, lacks, axis=axis)
                x = lax.concatenate((x, again), axis)
            return whole(x)

        # The axes of a matrix come after these, and are not divided.
        free = len(stack) - 1 - axis
        spec = [_ANY] * axis + [self.names] + [_ANY] * free
        whole = lambda x: self._placed(x, spec)

        def back(x):
            x = whole(x)  # so that XLA divides no matrix in between
            x = lax.slice_in_dim(x, 0, stack[axis], axis=axis) if lacks else x
            return self.together(x)

        moved = (
            x if isinstance(x, eqx.Module) else jax.tree.map(there, x) for x in columns
        )
        return jax.tree.map(back, fn(*moved))

    def _axis(self, stack: tuple[int, ...]) -> int | None:
        best = self.best(stack)
        return best if self.suits(stack[best]) else None

    def best(self, stack: Sequence[int]) -> int:
        """The axis that is divided best; the last of them, which may be of experts."""
        shares = {i: math.ceil(n / self.size) / n for i, n in enumerate(stack)}
        return min(reversed(shares), key=shares.__getitem__)

    def suits(self, count: int) -> bool:
        """Whether few devices would be idle with so many matrices."""
        return math.ceil(count / self.size) * self.size < 2 * count

    def together(self, x: Any) -> Any:
        """`x`, of which each device has a part of each leaf, if it is of leaves.

        Otherwise, XLA would move all arrays from which `x` is computed.
        """
        if not self.is_of_leaves:
            return x
        return self._placed(x, [None] + [_ANY] * (x.ndim - 1))

    def _placed(self, x: Any, spec: list) -> Any:
        sharding = NamedSharding(self._mesh_here(), P(*spec))
        return lax.with_sharding_constraint(x, sharding)

    def _mesh_here(self) -> Mesh | AbstractMesh:
        here = jax.sharding.get_abstract_mesh()
        return self.mesh if here.empty else here

    @property
    def first(self) -> P:
        """For arrays whose first axis is divided."""
        return P(self.names)

    def on_shares(self, fn: Callable, in_specs: Any, out_specs: Any) -> Callable:
        """`fn` on each device, with its share of the arguments, and no communication."""

        def undivided(*arguments):
            with divided(None):
                return fn(*arguments)

        # All axes are manual, also the ones along which nothing is divided. XLA would
        # divide the work in the branches of `cond`, and wait for other devices there.
        mapped = jax.shard_map(
            undivided,
            mesh=self._mesh_here(),
            in_specs=in_specs,
            out_specs=out_specs,
            check_vma=False,
        )
        return jax.jit(mapped)


class AbstractWhole(eqx.Module):
    """The part of an equation that needs a whole matrix: a function of it.

    If a division is given, the devices exchange only its argument and its result. All
    other arrays of the equation stay where they are.
    """

    division: eqx.AbstractVar[Division | None]

    @abc.abstractmethod
    def of_whole(self, x: Any, eps: Any) -> Any:
        """The result for a matrix, of the same shape."""

    def on_each(self, x: Any, eps: Any) -> Any:
        """`of_whole`, where mapped axes of `x` are divided between the devices."""
        if self.division is None:
            return self.of_whole(x, eps)
        arrays, others = eqx.partition((self, eps), eqx.is_array)

        def of_whole(x, arrays):
            own, eps = eqx.combine(arrays, others)
            return own.of_whole(x, eps)

        return _divided_if_mapped(of_whole, self.division)(x, arrays)


def part_of(division: Division, x: Any) -> Any:
    """`x`, with this division if it is such a part of an equation."""
    if not isinstance(x, AbstractWhole):
        return x
    return dataclasses.replace(x, division=division)


def _divided_if_mapped(fn: Callable, division: Division) -> Callable:
    """`fn(x, arrays)`; it divides the innermost mapped axis of `x` that suits."""
    run = jax.custom_batching.custom_vmap(lambda x, arrays: fn(x, arrays))

    @run.def_vmap
    def of_many(size, is_mapped, x, arrays):
        axes = jax.tree.map(lambda is_mapped: 0 if is_mapped else None, is_mapped)
        mapped = jax.vmap(fn, axes)
        if not division.suits(size) or axes[0] is None or jax.tree.leaves(axes[1]):
            return _divided_if_mapped(mapped, division)(x, arrays), True
        out = division.run(lambda x: mapped(x, arrays), [x], (size,))
        return out if division.is_of_leaves else sharded_like(x, out), True

    return run


_ANY = P.UNCONSTRAINED
_CURRENT: ContextVar[Division | None] = ContextVar("_CURRENT", default=None)


@contextlib.contextmanager
def divided(division: Division | None) -> Generator[None, None, None]:
    """In this context, equations of matrices are computed with this division."""
    token = _CURRENT.set(division)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def current_division() -> Division | None:
    return _CURRENT.get()
