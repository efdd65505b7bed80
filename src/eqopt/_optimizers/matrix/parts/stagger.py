"""Decides in which step each matrix does expensive work."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Bool

from ...._matrices import is_layout
from ...._types import Params, Updates


class Shift(eqx.Module):
    """How far the work of a matrix is shifted: by `place / of` of a period; static."""

    place: int = eqx.field(static=True)
    of: int = eqx.field(static=True)

    def is_due(self, steps: Any, every: Any) -> Bool[Array, ""]:
        """Whether this matrix is due. Matrices are spread over `every` steps."""
        return (steps + jnp.floor(self.place * every / self.of)) % every == 0


def shifts(owner: Any, params: Params | None, updates: Updates) -> Updates:
    """The shift of each matrix; without `stagger`, all are zero."""
    if not owner.stagger:
        return jtu.tree_map(lambda _: Shift(0, 1), updates)
    layouts = owner._layouts(updates, params)
    matrices, treedef = jtu.tree_flatten(layouts, is_leaf=is_layout)
    count = len(matrices)
    return treedef.unflatten(Shift(place, count) for place in range(count))
