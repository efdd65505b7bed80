"""Keeps some leaves unchanged."""

from typing import Any

import jax.numpy as jnp

from .._arguments.fields import static_choice
from .._core import AbstractStateless, Leafwise, equation
from .._trees.masks import mask_out
from .._trees.routes import Report
from .._types import Mask, Params


@equation(elementwise=True)
def zero(g):
    return jnp.zeros_like(g)


class Freeze(AbstractStateless):
    """Makes the updates of some leaves zero, so that these parameters stay unchanged.

    Put it last in a chain, after weight decay. The parameters then stay bit-identical.
    (A transformation before it still holds state for them.)

    !!! example

        ```python
        nothing = jax.tree.map(lambda _: False, model)
        frozen = eqx.tree_at(lambda m: m.encoder, nothing, True)
        opt = eqopt.Chain(eqopt.AdamW(1e-3), eqopt.Freeze(frozen))
        ```

    **Arguments:**

    - `mask`: which leaves are frozen, as in [`eqopt.Masked`][].
    """

    mask: Mask = static_choice()

    def _route(self, report: Report, params: Params) -> None:
        report.take(type(self).__name__, mask_out(params, self.mask, params))

    def leafwise(
        self, state: None, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        return Leafwise(zero, mask=self.mask)
