"""Pulling parameters towards zero."""

from typing import Any

from jaxtyping import Array, Float, Inexact

from .._checks import check_scalar
from .._equations import equation
from .._pipeline import Leafwise
from .._transformation import AbstractLeafwise
from .._types import Mask, Params, RealScalarLike


@equation
def decay_weights(
    g: Inexact[Array, "*leaf"],
    p: Inexact[Array, "*leaf"],
    *,
    weight_decay: Float[Array, ""],
) -> Inexact[Array, "*leaf"]:
    return g + weight_decay * p


class AddDecayedWeights(AbstractLeafwise):
    r"""Adds a multiple of the parameters to the updates: $u = g + \lambda p$.

    After the preconditioner and before the learning rate it is decoupled weight decay,
    as in AdamW; before the preconditioner it is an $L^2$ penalty.

    **Arguments:**

    - `weight_decay`: $\lambda$, a number or a 0-d array.
    - `mask`: which parameters decay, as in [`eqopt.Masked`][]. Defaults to all.

    **Raises:**

    A `ValueError` in `update` if `params` is `None`.
    """

    weight_decay: RealScalarLike = 0.0
    mask: Mask | None = None

    def __check_init__(self):
        check_scalar(self, "weight_decay")

    def init(self, params: Params) -> None:
        return None

    def leafwise(
        self, state: None, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        shared = {"weight_decay": self.weight_decay}
        return Leafwise(decay_weights, shared=shared, mask=self.mask)
