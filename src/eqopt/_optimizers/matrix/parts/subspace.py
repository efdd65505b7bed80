"""Projects matrices to subspaces and back, leaf by leaf."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Inexact

from ...._cpu.order import after
from ...._dimension_numbers import Axes, from_matrices, size, to_matrices
from ...._equations import equation
from ...._storage import store_like
from ....numerics import at_least_float32


def subspace(x: Inexact[Array, "..."], axes: Axes, old: Any) -> Any:
    """The leading left singular vectors, stored like `old`, the previous ones."""
    matrices = at_least_float32(to_matrices(x, axes))
    # The derivative is stopped, because it is infinite if singular values are equal.
    u, _, _ = jnp.linalg.svd(lax.stop_gradient(matrices), full_matrices=False)
    return store_like(old, u[..., : old.shape[-1]].astype(old.dtype))


def low_shape(x: Array, axes: Axes, projector: Any) -> tuple[int, ...]:
    *stack, _, rank = projector.shape
    return *stack, rank, size(x.shape, axes.output)


def projected(
    projector: Inexact[Array, "*stack short rank"],
    matrices: Inexact[Array, "*stack short long"],
) -> Inexact[Array, "*stack rank long"]:
    adjoint = jnp.conj(jnp.swapaxes(projector, -2, -1)).astype(matrices.dtype)
    return adjoint @ matrices


class There(NamedTuple):
    """Converts a leaf to matrices. Static, and equal for equal axes."""

    axes: Axes

    def __call__(self, x: Array) -> Array:
        return to_matrices(x, self.axes)


class Back(NamedTuple):
    """Converts matrices back to the axes of a leaf. Static, like `There`."""

    axes: Axes

    def __call__(self, matrices: Array, like: Array) -> Array:
        return from_matrices(matrices, self.axes, like)


@equation
def project(
    g: Inexact[Array, "*stack rank long"],
    full: Inexact[Array, "*leaf"],
    projector: Inexact[Array, "*stack short rank"],
    *,
    one: Float[Array, ""],
    axes: There,
) -> Inexact[Array, "*stack rank long"]:
    # Leaves wait for each other. Otherwise, XLA on a CPU would project all of them first.
    return projected(after(one, projector), axes(full))


@equation
def restore(
    g: Inexact[Array, "*leaf"],
    low: Inexact[Array, "*stack rank long"],
    projector: Inexact[Array, "*stack short rank"],
    *,
    scale: Float[Array, ""],
    axes: Back,
) -> Inexact[Array, "*leaf"]:
    # Leaves wait for each other, because the product is as large as the leaf.
    return axes(scale * (projector @ after(scale, low)), g)


@equation
def keep(
    g: Inexact[Array, "*leaf"], low: Inexact[Array, "*leaf"]
) -> Inexact[Array, "*leaf"]:
    return low
