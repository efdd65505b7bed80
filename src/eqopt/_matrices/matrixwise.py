"""Transformations of matrices: one equation, applied to each matrix in a model."""

import abc
import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import DTypeLike

from .._core.leafwise import Leafwise, filled, run_leafwise
from .._core.transformation import AbstractTransformation
from .._errors import InputError
from .._jax_internals import is_traced
from .._trees.leaves import align, flatten_updates, is_leaf, keystr
from .._trees.routes import Report
from .._trees.sharding import has_explicit_axes, on_automatic_axes, shardings_of
from .._trees.states import check_state
from .._trees.stored import shapes_if_stored
from .._types import Params, PyTree, State, Updates
from ..tree import zeros_like
from .axes import Axes, DimensionNumbers, resolve_dimension_numbers, size
from .batches import SHARE
from .division import current_division
from .layouts import Layout, Pieces, layout_of, make_slot, map_layouts, mask_matrices
from .on_matrices import on_matrices
from .stacks import check_stacks, init_stacks, update_stacks


Rows: TypeAlias = Literal["outputs", "shorter", "first"]


class AbstractContracting(AbstractTransformation):
    """A transformation that treats leaves as matrices.

    On a mesh with explicit axes, XLA chooses how its results are sharded.
    """

    _loads = "nothing"

    weight_dimension_numbers: eqx.AbstractVar[DimensionNumbers | None]
    # Which side of the matrices are the rows. If the equation maps a transposed matrix to
    # the transposed result, it can be the side that costs less: the shorter one, or the
    # first one in memory, so that nothing is transposed.
    _rows = "outputs"
    # Whether blocks within a matrix are allowed.
    _takes_blocks: ClassVar[bool] = True

    @abc.abstractmethod
    def _update(
        self, updates: Updates, state: State, params: Params | None, extra: Any
    ) -> tuple[Updates, State]:
        """The work of `update`, where no axis of the mesh is explicit."""

    def update(
        self, updates: Updates, state: State, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, State]:
        check_state(self, state)
        arguments = updates, state, params, extra
        if not has_explicit_axes((updates, state)):
            return self._update(*arguments)
        shardings = shardings_of((updates, state))
        update = type(self)._update
        return on_automatic_axes(update, self, *arguments, shardings=shardings)

    def _layouts(self, tree, params) -> PyTree[Layout | Pieces | None]:
        """`tree` with the layout of each matrix, and `None` elsewhere.

        Matrices without elements are no matrices.
        """
        block_size = getattr(self, "block_size", None)
        leaves, treedef = jtu.tree_flatten(tree, is_leaf=is_leaf)
        return treedef.unflatten(
            None
            if axes is None
            else layout_of(axes, tuple(x.shape), block_size, self._choose_rows)
            for axes, x in zip(self._axes(tree, params), leaves, strict=True)
        )

    def _axes(self, tree: PyTree, params: Params | None) -> list[Axes | None]:
        """Finds the axes of each leaf; `None` if it is not a matrix, or empty."""
        found = resolve_dimension_numbers(
            self.weight_dimension_numbers,
            tree,
            params,
            is_required=True,
            takes_blocks=self._takes_blocks,
        )
        leaves = jtu.tree_leaves(tree, is_leaf=is_leaf)
        pairs = zip(found, leaves, strict=True)
        return [None if axes is None or 0 in x.shape else axes for axes, x in pairs]

    def _route(self, report: Report, params: Params) -> None:
        axes = self._axes(params, params)
        report.take(type(self).__name__, params, axes)
        pairs = zip(axes, jtu.tree_leaves(params, is_leaf=is_leaf), strict=True)
        of_one = lambda axes, x: axes and axes.map_blocks(x.shape, self._factor)
        report.multiply(params, [of_one(*pair) for pair in pairs])

    def _factor(self, outputs: int, inputs: int) -> float | None:
        """A factor for the shape of a matrix, which the equation includes."""
        return None

    def _choose_rows(self, axes: Axes, shape: tuple[int, ...]) -> Any:
        sides = axes.output, axes.reduction
        if self._rows == "first":
            return sorted(sides)
        if self._rows == "shorter":
            return sorted(sides, key=lambda side: (size(shape, side), side))
        return sides


class AbstractMatrixwise(AbstractContracting):
    """A transformation that applies one equation to each matrix separately.

    Subclass it and implement `init` and `matrixwise`. This class then provides `update`
    and `step`. They support stacks of matrices, convolution kernels and arrays on many
    devices. Parameters that are not matrices pass unchanged and have no state.

    Under `jit`, accelerators compute matrices of the same shape in batches, with one
    product or one decomposition for all of them. A stack is a batch by itself, if the
    work is products, and keeps its axes and their shards. A CPU computes one leaf after
    the other, and frees the memory in between. For an equation without products and
    decompositions, a batch is only a copy: then set `in_batches` to `False`.

    The equation is an [`eqopt.equation`][] for a single matrix: its rows are the
    outputs of a layer, its columns the inputs. Each positional argument is one of
    these:

    - An array, which has the axes of the parameter, some of them possibly of size 1.
        (One number for each row is a column.) The equation receives a matrix.
    - A tuple of arrays with other data for each matrix, such as a square factor. The
        first axes of each array are the axes of the stack. The equation receives the
        arrays of one matrix, without these axes.
    - An `eqx.Module` for each leaf, which the equation receives unchanged. (A module
        that all leaves share is a keyword-only argument.)

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

    - `weight_dimension_numbers`: which parameters are matrices: see
        [`eqopt.ScaleByMuon`][]. Each subclass has this field.
    - `block_size`: the largest size of a side of a matrix, a field that a subclass may
        have. Larger sides are split into equal parts, and each block is a separate
        matrix. (One number for each row of a block is a column for each block.)
    - `in_batches`: whether an accelerator computes equal matrices in batches, a constant
        of the class. Defaults to `True`.
    """

    in_batches: ClassVar[bool] = True
    # What takes most of the time of the equation.
    _work = "products"
    # Parts of the state whose shapes depend on arguments, and the methods that make them.
    _sized: ClassVar[tuple[tuple[str, str], ...]] = ()
    # Whether the state is too large to be sent: see `eqopt.DistributeMatrices`.
    _stays: ClassVar[bool] = False

    @abc.abstractmethod
    def matrixwise(
        self, state: State, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        """The equation of this step and its arguments, as in [`eqopt.Leafwise`][].

        **Arguments:**

        - `state`, `params`, `extra`: as in `update`.
        """

    def for_matrices(
        self, params: Params, make: Callable[[Any], Any], dtype: DTypeLike | None = None
    ) -> PyTree:
        """Part of the state: the result of `make` for each matrix, `None` elsewhere.

        **Arguments:**

        - `params`: as in `init`.
        - `make`: a function of a matrix of zeros, with the shape and dtype in which the
            equation computes. It returns an argument of the equation: an array, which
            starts at zero, or a tuple of arrays or `None`s.
        - `dtype`: the dtype in which an array is stored. A tuple is stored in the
            dtype in which the equation computes, at least float32, which is the default.
        """

        def make_all(own, params):
            make_one = lambda layout, x: make_slot(make, x, layout, dtype)
            layouts = own._layouts(params, params)
            return map_layouts(make_one, layouts, zeros_like(params))

        division = current_division()
        if self._stays and division is not None:
            return init_stacks(self, params, division, make_all)
        return make_all(self, params)

    def _update(
        self, updates: Updates, state: State, params: Params | None, extra: Any
    ) -> tuple[Updates, State]:
        division = current_division()
        if self._stays:
            check_stacks(state, division)
            if division is not None:
                run = functools.partial(type(self)._run, limit=SHARE)
                return update_stacks(self, updates, state, params, division, run)
        return self._run(updates, state, params, extra, division)

    def _run(self, updates, state, params=None, extra=None, division=None, limit=None):
        """The work of `_update`: for all leaves, or for the share of a device.

        `limit`: if given, all leaves are stacks, and are computed `in_place`.
        """
        step = filled(self, self.matrixwise(state, params, **(extra or {})))
        layouts = self._layouts(updates, params)
        self._check_sizes(state, layouts, updates)
        mask = mask_matrices(layouts)
        names = [x for x in step.equation.leaves if hasattr(step.state, x)]
        _check_are_matrices(mask, updates, {x: getattr(step.state, x) for x in names})
        of_leaves = on_matrices(
            step.equation, self.in_batches, self._work, division, limit
        )
        reads = {**step.reads, "layout": layouts}
        step = step._replace(equation=of_leaves, reads=reads, mask=mask)
        return run_leafwise(self, step, updates, params)

    def _check_sizes(self, state, layouts: PyTree[Layout | Pieces | None], updates):
        """Raises if `init` would make `_sized` in other shapes, if a step is compiled."""

        def check(make, layout, x, old):
            zeros = jax.ShapeDtypeStruct(x.shape, jnp.float32)
            new = jax.eval_shape(functools.partial(layout.apply, make), zeros)
            if jtu.tree_map(jnp.shape, new) != jtu.tree_map(jnp.shape, old):
                self._reject_state()

        is_due = self._sized and any(map(is_traced, jtu.tree_leaves(updates)))
        for name, make in self._sized if is_due else ():
            of_one = functools.partial(check, getattr(self, make))
            slots = shapes_if_stored(getattr(state, name))
            map_layouts(of_one, layouts, updates, slots)

    def _reject_state(self) -> None:
        raise InputError(
            "the state was made with other arguments, and keeps its shapes. Pass the "
            "same arguments, or make a new state: `opt.init(model)`."
        )


def _check_are_matrices(mask: PyTree[bool], updates, slots: Mapping[str, PyTree]):
    """Raises an error for an update that only `init` treated as a matrix."""
    leaves, treedef = flatten_updates(updates)
    flags = jtu.tree_leaves(mask)
    for name, slot in slots.items():
        column = align(treedef, slot, f"state.{name}", updates)
        for i, (is_matrix, g, x) in enumerate(zip(flags, leaves, column, strict=True)):
            if not is_matrix and g is not None and x is not None:
                raise InputError(
                    f"`{keystr(updates, i)}` was a matrix in `init` (`{name}`), but is "
                    "not one now. Pass the same model to `init`, whose layers say what "
                    "is a matrix, or `weight_dimension_numbers`."
                )
