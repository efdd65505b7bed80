"""Projects matrices to subspaces and back, leaf by leaf."""

from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Inexact

from ...._cpu.order import after
from ...._equations import Equation
from ...._matrices import Layout
from ...._storage import store_like
from ....numerics import at_least_float32


def subspace(x: Inexact[Array, "..."], layout: Layout, old: Any) -> Any:
    """The leading left singular vectors, stored like `old`, the previous ones."""
    matrices = at_least_float32(layout.split(x))
    u = leading(matrices, old.shape[-1])
    return store_like(old, u.astype(old.dtype))


def leading(
    matrices: Inexact[Array, "*stack short long"], rank: int
) -> Inexact[Array, "*stack short rank"]:
    """The leading left singular vectors."""
    # The derivative is stopped, because it is infinite if singular values are equal.
    u, _, _ = jnp.linalg.svd(lax.stop_gradient(matrices), full_matrices=False)
    return u[..., :rank]


def low_shape(layout: Layout, x: Array, projector: Any) -> tuple[int, ...]:
    *stack, _, rank = projector.shape
    return *stack, rank, layout.sides(x.shape)[1]


def projected(
    projector: Inexact[Array, "*stack short rank"],
    matrices: Inexact[Array, "*stack short long"],
) -> Inexact[Array, "*stack rank long"]:
    adjoint = jnp.conj(jnp.swapaxes(projector, -2, -1)).astype(matrices.dtype)
    return adjoint @ matrices


class _Reshaping(Equation):
    """An equation whose result has another shape than its update."""

    keeps_shape = False


@_Reshaping
def project(
    g: Inexact[Array, "..."],
    full: Inexact[Array, "*leaf"],
    projector: Inexact[Array, "*stack short rank"],
    layout: Layout,
    *,
    one: Float[Array, ""],
) -> Inexact[Array, "*stack rank long"]:
    # Leaves wait for each other. Otherwise, XLA on a CPU would project all of them first.
    return projected(after(one, projector), layout.split(full))


@_Reshaping
def restore(
    g: Inexact[Array, "*stack rank long"],
    full: Inexact[Array, "*leaf"],
    projector: Inexact[Array, "*stack short rank"],
    layout: Layout,
    *,
    scale: Float[Array, ""],
) -> Inexact[Array, "*leaf"]:
    # Leaves wait for each other, because the product is as large as the leaf.
    return layout.joined(scale * (projector @ after(scale, g)), full.shape)
