"""Decides in which step each matrix does expensive work."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Bool

from ...._matrices import AbstractMatrixwise, is_layout
from ...._types import Params, Updates


class Turn(eqx.Module):
    """The position of a matrix among all matrices that take turns; static."""

    place: int = eqx.field(static=True)
    of: int = eqx.field(static=True)

    def is_due(self, steps: Any, every: Any) -> Bool[Array, ""]:
        """Whether it is the turn of this matrix. Turns are spread over `every` steps."""
        return (steps + jnp.floor(self.place * every / self.of)) % every == 0


def turns(
    owner: AbstractMatrixwise, params: Params | None, updates: Updates
) -> Updates:
    """The position of each leaf among the matrices; without `stagger`, all are equal."""
    if not getattr(owner, "stagger", False):
        return jtu.tree_map(lambda _: Turn(0, 1), updates)
    layouts = owner._layouts(updates, params)
    matrices, treedef = jtu.tree_flatten(layouts, is_leaf=is_layout)
    count = len(matrices)
    return treedef.unflatten(Turn(place, count) for place in range(count))
