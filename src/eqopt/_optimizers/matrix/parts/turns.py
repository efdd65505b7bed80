"""Decides in which step each matrix does expensive work."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Bool

from ...._leaves import is_leaf
from ...._matrixwise import AbstractMatrixwise
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
    treedef = jtu.tree_structure(updates, is_leaf=is_leaf)
    layouts = owner._layouts(updates, params)
    matrices = [i for i, x in enumerate(layouts) if x is not None]
    if not getattr(owner, "stagger", False):
        return treedef.unflatten([Turn(0, 1)] * len(layouts))
    places = {i: Turn(place, len(matrices)) for place, i in enumerate(matrices)}
    return treedef.unflatten(places.get(i) for i in range(len(layouts)))
