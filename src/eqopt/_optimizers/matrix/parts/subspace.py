"""Finds subspaces of matrices, and projects to them and back."""

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Inexact

from ...._core import Arguments, ShapeMismatch
from ...._matrices import (
    BATCH,
    BatchedEquation,
    Batching,
    Layout,
    largest_batch,
    make_batches,
)
from ...._trees.control import filter_cond
from ...._types import Leaf, Scalar


def leading(
    matrices: Inexact[Array, "*stack short long"], rank: int
) -> Inexact[Array, "*stack short rank"]:
    """The leading left singular vectors."""
    # The derivative is stopped, because it is infinite if singular values are equal.
    u, _, _ = jnp.linalg.svd(lax.stop_gradient(matrices), full_matrices=False)
    return u[..., :rank]


def projected(
    projector: Inexact[Array, "*stack short rank"],
    matrices: Inexact[Array, "*stack short long"],
) -> Inexact[Array, "*stack rank long"]:
    adjoint = jnp.conj(jnp.swapaxes(projector, -2, -1)).astype(matrices.dtype)
    return adjoint @ matrices


class _Reshaping(BatchedEquation):
    """An equation of matrices whose result has another shape than its update.

    Leaves of equal types are computed at once, as many as fit into a batch. Batches do
    not take turns: GaLore would move 12 sizes of the parameters instead of 9 on an H100.
    """

    batching = Batching(BATCH["decompositions"])
    keeps_shape = False

    def batch_key(self, g: Any, *leaves: Any) -> Hashable:
        arrays, treedef = jax.tree.flatten((g, *leaves))
        is_large = 2 * _largest(arrays) > largest_batch("decompositions")
        return None if is_large else (treedef, tuple(map(jax.typeof, arrays)))

    def of_all(self, calls: Sequence[Arguments], limit: int) -> list[Any]:
        results: list[Any] = [None] * len(calls)
        keys = [self.batch_key(*leaves) for leaves, _ in calls]
        elements = [_largest(jax.tree.leaves(leaves)) for leaves, _ in calls]
        for batch in make_batches(keys, elements, limit):
            run = functools.partial(self, **calls[batch[0]][1])
            outs = _stacked(run, [calls[i][0] for i in batch])
            for i, out in zip(batch, outs, strict=True):
                results[i] = out
        return results


def _largest(arrays: Sequence[Any]) -> int:
    return max(x.size for x in arrays)


def _stacked(run: Callable, rows: list[tuple]) -> list[Any]:
    """The results of `run` for each row of arguments of the same types."""
    if len(rows) == 1:
        return [run(*rows[0])]
    out = jax.vmap(run)(*jax.tree.map(lambda *x: jnp.stack(x), *rows))
    return [jax.tree.map(lambda x, k=k: x[k], out) for k in range(len(rows))]


@_Reshaping
def subspace(
    g: Leaf,
    projector: Inexact[Array, "*stack short rank"],
    layout: Layout,
    *,
    is_due: Bool[Array, ""],
    some_missing: Bool[Array, ""],
) -> tuple[Scalar, Inexact[Array, "*stack short rank"]]:
    """Renews a projector that is due or missing.

    There is no update: an array would be copied.
    """
    is_of_others = jnp.iscomplexobj(g) != jnp.iscomplexobj(projector)
    shape = jax.eval_shape(layout.split, g).shape
    if is_of_others or shape[:-1] != projector.shape[:-1]:
        raise ShapeMismatch(None, "a projector of other matrices")
    # Splits in the branch: outside, XLA on a CPU would transpose all leaves first.
    leading_now = lambda: leading(layout.split(g), projector.shape[-1])
    renewed = lambda: jnp.where(
        is_due | is_missing(projector), leading_now(), projector
    )
    new = filter_cond(is_due | some_missing, renewed, lambda: projector)
    return jnp.zeros((), new.real.dtype), new


def is_missing(projector: Inexact[Array, "*stack short rank"]) -> Bool[Array, ""]:
    """Tells whether a leaf had no gradient yet: its singular vectors are zero."""
    return jnp.all(projector[..., 0] == 0)


@_Reshaping
def project(
    g: Leaf, projector: Inexact[Array, "*stack short rank"], layout: Layout
) -> Inexact[Array, "*stack rank long"]:
    return projected(projector, layout.split(g))


@_Reshaping
def restore(
    g: Inexact[Array, "*stack rank long"],
    full: Leaf,
    projector: Inexact[Array, "*stack short rank"],
    layout: Layout,
    *,
    scale: Scalar,
) -> Leaf:
    return layout.merge(scale * (projector @ g), full.shape)
