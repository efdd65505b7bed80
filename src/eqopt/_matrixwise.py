"""Transformations of matrices: one equation, applied to each matrix in a model."""

import abc
import functools
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import DTypeLike, PyTree

from ._checks import check_state
from ._cpu.order import after
from ._dimension_numbers import (
    Axes,
    DimensionNumbers,
    from_matrices,
    resolve_dimension_numbers,
    size,
    to_matrices,
)
from ._equations import KERNELS, Equation, ShapeMismatch
from ._explicit import has_explicit_axes, on_automatic_axes, shardings_of
from ._leaves import is_leaf
from ._pipeline import Leafwise, Pipeline, filled
from ._transformation import AbstractFused
from ._typecheck import no_type_check
from ._types import Params, State, Updates
from .numerics import common_dtype, wide_dtype
from .tree import zeros_like


class AbstractContracting(AbstractFused):
    """A fused transformation whose equations contract or reshape axes of the leaves.

    On a mesh with explicit axes, it leaves the sharding of its results to XLA.
    """

    @abc.abstractmethod
    def _push(self, pipeline: Pipeline, state: State) -> Callable[[], State]:
        """What `_feed` does where no axis is explicit."""

    def _feed(self, pipeline: Pipeline, state: State) -> Callable[[], State]:
        check_state(self, state)
        if not has_explicit_axes((pipeline.given, state)):
            return self._push(pipeline, state)
        updates = pipeline.wide()
        arguments = self, updates, state, pipeline.params, pipeline.extra
        updates, new = on_automatic_axes(
            _at_once, *arguments, shardings=shardings_of((updates, state))
        )
        pipeline.replace(updates)
        return lambda: new


def _at_once(
    self: AbstractContracting, updates: Any, state: State, params: Any, extra: Any
) -> tuple[Any, State]:
    pipeline = Pipeline(updates, params, extra)
    promise = self._push(pipeline, state)
    return pipeline.finish(), promise()


class AbstractMatrixwise(AbstractContracting):
    """A transformation that applies one equation to each matrix separately.

    Subclass it and implement `init` and `matrixwise`; `update` and `step` follow,
    including stacks of matrices, convolution kernels and arrays on many devices.
    Parameters that are not matrices pass unchanged and have no state.

    The equation is an [`eqopt.equation`][] for a single matrix: its rows are the
    outputs of a layer, its columns the inputs. For its positional arguments,

    - an array has the axes of the parameter, of which some may have size 1 (a number
        for each row is a column), and comes in as a matrix;
    - a tuple of arrays holds something else for each matrix, such as a square factor:
        its arrays have the axes of the stack first, which the equation does not see;
    - an `eqx.Module` comes in as it is.

    !!! example

        ```python
        class CenterState(eqx.Module):
            mean: PyTree


        @eqopt.equation
        def center(g, mean, *, decay):
            mean = decay * mean + (1 - decay) * jnp.mean(g, 1, keepdims=True)
            return g - mean, mean


        class CenterRows(eqopt.AbstractMatrixwise):
            decay: float = 0.9
            weight_dimension_numbers: Any = None

            def init(self, params):
                return CenterState(self.for_matrices(params, lambda x: x[:, :1]))

            def matrixwise(self, state, params, **extra):
                return eqopt.Leafwise(center, state)
        ```

    **Attributes:**

    - `weight_dimension_numbers`: which parameters are matrices, as for
        [`eqopt.ScaleByMuon`][]. A field of each subclass.
    - `block_size`: a field that a subclass may have: the largest size of a side of a
        matrix. A larger one is split into equal parts, each block a matrix of its own.
    """

    weight_dimension_numbers: eqx.AbstractVar[DimensionNumbers | None]

    @abc.abstractmethod
    def matrixwise(
        self, state: State, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        """The equation of this step and its arguments, as in [`eqopt.Leafwise`][].

        **Arguments:**

        - `state`, `params`, `extra`: as in `update`.
        """

    def for_matrices(
        self,
        params: Params,
        make: Callable[[Any], Any],
        dtype: DTypeLike | None = None,
    ) -> PyTree:
        """Part of the state: the result of `make` for each matrix, `None` elsewhere.

        **Arguments:**

        - `params`: as in `init`.
        - `make`: a function of a matrix of zeros, of the shape and dtype that the
            equation computes with. What it returns is as the equation takes it: an
            array, which starts at zero, or a tuple of arrays or `None`s.
        - `dtype`: the dtype in which it is stored. Defaults to the parameter's dtype
            for arrays that are like the parameter, and else to the dtype in which the
            equation computes.
        """
        zeros, treedef = jtu.tree_flatten(zeros_like(params), is_leaf=is_leaf)
        layouts = self._layouts(params, params)
        return treedef.unflatten(
            None if layout is None else _made(make, x, layout, dtype)
            for x, layout in zip(zeros, layouts, strict=True)
        )

    def _layouts(self, tree: PyTree, params: Params | None) -> "list[Layout | None]":
        """The axes of each leaf of `tree` (counting `None`s); `None` for no matrix."""
        axes = resolve_dimension_numbers(self.weight_dimension_numbers, tree, params)
        block_size = getattr(self, "block_size", None)
        rows_first = lambda a: Axes(a.stack, a.output, a.reduction)
        return [a and Layout(rows_first(a), block_size) for a in axes]

    def _push(self, pipeline: Pipeline, state: State) -> Callable[[], State]:
        params, extra = pipeline.params, pipeline.extra
        leafwise = filled(self, self.matrixwise(state, params, **extra))
        leaves, treedef = jtu.tree_flatten(pipeline.given, is_leaf=is_leaf)
        layouts = self._layouts(pipeline.given, params)
        mask = [
            a is not None and x.size > 0 for x, a in zip(leaves, layouts, strict=True)
        ]
        leafwise = leafwise._replace(
            equation=_on_matrices(leafwise.equation),
            shared={**leafwise.shared, "turn": 1.0},
            reads={**leafwise.reads, "layout": treedef.unflatten(layouts)},
            mask=treedef.unflatten(mask),
        )
        return pipeline.push(type(self).__name__, leafwise)


@no_type_check
def _made(make, zeros, layout, dtype):
    """The result of `make`, sharded like the parameter where possible, given its zeros.

    It is not computed from the zeros, but placed like them: on a mesh with explicit
    axes, it could not be computed.
    """
    made = layout.apply(make, jnp.zeros(zeros.shape, wide_dtype(zeros.dtype)))
    if isinstance(made, tuple):
        nothing = jnp.sum(zeros)
        return jax.tree.map(lambda x: x + _as(nothing, x, x.dtype), made)
    axes = [i for i, n in enumerate(made.shape) if n != zeros.shape[i]]
    if dtype is None:
        dtype = made.dtype if axes else zeros.dtype
    return _as(jnp.sum(zeros, axes, keepdims=True) if axes else zeros, made, dtype)


@no_type_check
def _as(x, like, dtype):
    """`x` in the precision of `dtype`, complex if `like` is."""
    real = jnp.finfo(dtype).dtype
    if jnp.iscomplexobj(like):
        return x.astype(common_dtype(real, jnp.complex64))
    return x.real.astype(real)


def everywhere(value: PyTree) -> Callable[[Updates], PyTree]:
    """For [`eqopt.Leafwise.reads`][eqopt.Leafwise]: the same module for each leaf."""
    return lambda updates: jtu.tree_map(lambda _: value, updates)


class Layout(eqx.Module):
    """How a leaf represents a stack of matrices: static, and equal for equal axes."""

    axes: Axes = eqx.field(static=True)
    block_size: int | None = eqx.field(static=True)

    @no_type_check
    def apply(self, fn: Callable, g: Any, *leaves: Any) -> Any:
        """`fn` of each matrix of `g` and of the other arrays, in their old layout."""
        there = [self._split(x) for x in (g, *leaves)]
        axes = [None if isinstance(x, eqx.Module) else 0 for x in there]
        for _ in range(there[0].ndim - 2):
            fn = jax.vmap(fn, axes)
        out = fn(*there)
        if isinstance(out, tuple) and leaves:
            return tuple(self._joined(x, g.shape) for x in out)
        return self._joined(out, g.shape)

    def _split(self, x: Any) -> Any:
        if isinstance(x, tuple | eqx.Module):
            return x
        x = to_matrices(x, self.axes)
        counts = [self._blocks(n) for n in x.shape[-2:]]
        if counts == [1, 1]:
            return x
        sides = [math.ceil(n / k) for n, k in zip(x.shape[-2:], counts, strict=True)]
        *stack, rows, columns = x.shape
        (k, j), (m, n) = counts, sides
        x = jnp.pad(
            x, [(0, 0)] * len(stack) + [(0, k * m - rows), (0, j * n - columns)]
        )
        return jnp.moveaxis(x.reshape(*stack, k, m, j, n), -3, -2)

    def _joined(self, x: Any, shape: tuple[int, ...]) -> Any:
        if isinstance(x, tuple):
            return x
        sides = [size(shape, side) for side in self.axes[1:]]
        if x.ndim > len(self.axes.stack) + 2:
            *stack, k, j, m, n = x.shape
            x = jnp.moveaxis(x, -2, -3).reshape(*stack, k * m, j * n)
            x = x[..., : sides[0], : sides[1]]
        own = list(shape)
        for side, n, found in zip(self.axes[1:], sides, x.shape[-2:], strict=True):
            if found != n:
                for axis in side:
                    own[axis] = 1
        return from_matrices(x, self.axes, jax.ShapeDtypeStruct(tuple(own), x.dtype))

    def _blocks(self, n: int) -> int:
        size = self.block_size
        return 1 if size is None else max(1, math.ceil(n / size))


class _OnMatrices(Equation):
    """An equation of one matrix as an equation of a leaf."""

    is_of_matrices = True

    def __init__(self, equation: Equation):
        functools.update_wrapper(self, equation)
        self.name, self._equation = equation.name, equation
        self.leaves = (*equation.leaves, "layout")
        self.shared = (*equation.shared, "turn")

    def __call__(self, g: Any, *leaves: Any, turn: Any, **shared: Any) -> Any:
        *arguments, layout = leaves
        # Modules hold numbers of their own, and what has no state fits anything.
        slots = jax.tree.leaves([x for x in arguments if not isinstance(x, eqx.Module)])
        if jnp.iscomplexobj(g) and slots and not any(map(jnp.iscomplexobj, slots)):
            raise ShapeMismatch("a complex update of what is real")
        # In turn, or XLA on a CPU starts with what it makes of all leaves: products, and
        # transposed parameters.
        names = self._equation.leaves
        there = [
            after(turn, x) if name == "p" else x
            for name, x in zip(names, arguments, strict=True)
        ]
        fn = functools.partial(self._equation, **shared)
        return layout.apply(fn, after(turn, g), *there)


_on_matrices = functools.lru_cache(KERNELS)(_OnMatrices)
