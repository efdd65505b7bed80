"""Optimizers that look at the sign of the gradient."""

import optax

import eqopt

from ..case import LINEAR, Case, is_matrix


CASES = {
    "lion": Case(eqopt.Lion(0.1), optax.lion(0.1)),
    "lion, other": Case(
        eqopt.Lion(LINEAR[0], 0.5, 0.3, weight_decay=0.1, mask=is_matrix),
        optax.lion(LINEAR[1], 0.5, 0.3, weight_decay=0.1, mask=is_matrix),
    ),
    "lion, smooth": Case(
        eqopt.ScaleByLion(0.8, 0.9, mode="smooth", smooth_beta=3.0),
        optax.scale_by_lion(0.8, 0.9, mode="smooth", smooth_beta=3.0),
    ),
    "lion, refined": Case(
        eqopt.ScaleByLion(0.8, 0.9, mode="refined"),
        optax.scale_by_lion(0.8, 0.9, mode="refined"),
    ),
    "lion, b2 = 0": Case(eqopt.ScaleByLion(0.8, 0.0), optax.scale_by_lion(0.8, 0.0)),
}
