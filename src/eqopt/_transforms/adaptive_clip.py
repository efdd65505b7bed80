"""Clips the gradient of each unit by the norm of its weights."""

from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Float, Inexact

from .._core import AbstractStateless, Leafwise, equation
from .._matrices import Axes, Own, by_class, find_stacks, resolve_dimension_numbers
from .._trees.leaves import align, is_leaf
from .._types import Hyperparameter, Leaf, Params, PyTree, Updates, ZeroOrMore
from ..numerics._numerics import abs_sq, at_least_float32, safe_sqrt


_Axis: TypeAlias = int | tuple[int, ...] | None


def unitwise_norm(
    x: Inexact[Array, "*leaf"], axis: _Axis = None
) -> Float[Array, "*leaf"]:
    r"""The norms of the slices of `x` along some axes, repeated over each slice.

    **Arguments:**

    - `x`: a floating-point or complex array.
    - `axis`: the axis, or a tuple of axes, that a slice extends along. Defaults to the
        input axes of weights whose last axis is the output axis: all axes of scalars,
        vectors and arrays with at most one axis longer than 1; the first of two or
        three axes; all but the last of four or more axes.

    **Returns:**

    A real array of the shape of `x`, at least float32. Its gradient is 0 where it is 0.

    **Raises:**

    A `ValueError` if `x` has no such axis.
    """
    if axis is None:
        axis = _input_axes(x.shape)
    sums = jnp.sum(abs_sq(at_least_float32(x)), axis, keepdims=True)
    # Not `broadcast_to`, whose result is replicated on a mesh with explicit axes.
    return safe_sqrt(sums) + jnp.zeros_like(x, sums.dtype)


def _input_axes(shape: tuple[int, ...]) -> tuple[int, ...]:
    ndim = len(shape)
    if sum(length != 1 for length in shape) <= 1:
        return tuple(range(ndim))
    return (0,) if ndim < 4 else tuple(range(ndim - 1))


def unitwise_clip(
    g_norm: Float[Array, "*leaf"],
    max_norm: Float[Array, "*leaf"],
    grad: Inexact[Array, "*leaf"],
    div_eps: Hyperparameter = 1e-6,
) -> Inexact[Array, "*leaf"]:
    """Scales `grad` down to `max_norm` where `g_norm` is not smaller.

    **Arguments:**

    - `g_norm`, `max_norm`: the norms of `grad` and their upper bounds, arrays of the
        shape of `grad`, as returned by [`eqopt.unitwise_norm`][].
    - `grad`: a floating-point or complex array.
    - `div_eps`: the lower bound of `g_norm` as a divisor.

    **Returns:**

    An array of the shape and dtype of `grad`.
    """
    least = jnp.asarray(div_eps, g_norm.dtype)
    # Not a selection of gradients: on explicit axes, these may have other shards.
    share = jnp.where(g_norm < max_norm, 1, max_norm / jnp.maximum(g_norm, least))
    with jax.numpy_dtype_promotion("standard"):  # of real and complex
        return (grad * share).astype(grad.dtype)


class _Unit(eqx.Module):
    """The axes of a unit. A tree without leaves, so it is static for the kernel."""

    axis: _Axis = eqx.field(static=True)


@equation
def adaptive_clip(g: Leaf, p: Leaf, unit: _Unit, *, clipping, eps) -> Leaf:
    max_norm = clipping * jnp.maximum(unitwise_norm(p, unit.axis), eps)
    return unitwise_clip(unitwise_norm(g, unit.axis), max_norm, g)


class AdaptiveGradClip(AbstractStateless):
    r"""Scales a unit's gradient down if it is large relative to the unit's weights.

    $$u_i = g_i \cdot \min\left(1,
        \frac{\lambda \max(\|p_i\|_2, \varepsilon)}{\|g_i\|_2}\right),$$

    where $i$ is a unit: the weights of all inputs to one output. For Equinox's linear,
    convolution and recurrent layers, these axes are known, also when stacked with
    `eqx.filter_vmap`. Other arrays count as weights with the outputs last, as in
    [`eqopt.unitwise_norm`][], and a vector counts as one unit. Your own arrays next to
    stacked layers are stacked, too: see [`eqopt.groups.layer_matrices`][].

    **Arguments:**

    - `clipping`: $\lambda \ge 0$, the largest ratio of update to weights. The paper
        uses 0.01 for large batches and larger values for smaller batches, and does not
        clip the last layer.
    - `eps`: $\varepsilon \ge 0$, the lower bound of the norms of weights, so that
        weights of zero can change. Defaults to 0.001.
    - `axis`: the axis, or a tuple of axes, that a unit extends along, for all leaves.
        Defaults to `None`, which means the units above.

    **Raises:**

    A `ValueError` if a hyperparameter is out of its range; in `update`, if `params` is
    `None` or a leaf does not have these axes.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{brock2021high,
            author = {Brock, Andrew and De, Soham and Smith, Samuel L. and Simonyan,
                      Karen},
            title = {High-Performance Large-Scale Image Recognition Without
                     Normalization},
            booktitle = {International Conference on Machine Learning},
            year = {2021},
        }
        ```
    """

    clipping: ZeroOrMore
    eps: ZeroOrMore = 1e-3
    axis: _Axis = eqx.field(static=True, default=None)

    def leafwise(
        self, state: None, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        reads = {"unit": lambda updates: self._units(updates, params)}
        return Leafwise(adaptive_clip, reads=reads)

    def _units(self, updates: Updates, params: Params | None) -> PyTree:
        if params is not None:
            align(jtu.tree_structure(updates, is_leaf), params, "params", updates)
        tree = updates if params is None else params
        leaves, treedef = jtu.tree_flatten(tree, is_leaf=is_leaf)
        if self.axis is not None:
            return treedef.unflatten([_Unit(self.axis)] * len(leaves))
        # Differs from Optax in: weights of Equinox's layers have their outputs first.
        known = resolve_dimension_numbers(None, tree, params, _of_layers_only)
        both = zip(known, leaves, find_stacks(tree), strict=True)
        return treedef.unflatten(_unit(*of_leaf) for of_leaf in both)


def _of_layers_only(tree: PyTree) -> list:
    return [None if numbers is Own else numbers for numbers in by_class(tree)]


def _unit(axes: Axes | None, x: Any, stack: tuple[int, ...]) -> _Unit:
    if axes is not None:
        return _Unit(axes.reduction)
    if not stack:
        return _Unit(None)
    first = len(stack)
    return _Unit(tuple(first + axis for axis in _input_axes(x.shape[first:])))
