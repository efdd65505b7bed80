"""LaProp: Adam that normalizes before it averages."""

import numpy as np
import optax

import eqopt

from ...laws.row import LINEAR, is_matrix, row
from ...parity.by_hand import B1, B2, EPS
from ...parity.case import COSINES, LINEARS, ByHand
from ..method import Method, same


def laprop_by_hand(grads):
    m = v = 0
    for t, g in enumerate(grads, 1):
        v = B2 * v + (1 - B2) * g**2
        m = B1 * m + (1 - B1) * g / (np.sqrt(v / (1 - B2**t)) + EPS)
        yield m / (1 - B1**t)


def in_parts(learning_rate, b1=0.9, b2=0.999, eps=1e-15, weight_decay=0.0, mask=None):
    """Optax has no LaProp, but it has what LaProp is made of."""
    return optax.chain(
        optax.scale_by_rms(b2, eps, eps_in_sqrt=False, bias_correction=True),
        optax.ema(b1),
        optax.add_decayed_weights(weight_decay, mask),
        optax.scale_by_learning_rate(learning_rate),
    )


METHODS = [
    Method(
        eqopt.LaProp,
        idea="Adam that normalizes before it averages",
        theirs=in_parts,
        nearest="its parts",
        rates=(0.0032, 0.01, 0.0032, 0.001),
        laws=[
            row(eqopt.ScaleByLaProp, b1=0.8, b2=0.9, eps=1e-3),
            row(eqopt.LaProp, at=0.01, learning_rate=0.1, b1=0.5, weight_decay=0.3),
            row(
                lambda: eqopt.LaProp(
                    LINEAR,
                    weight_decay=LINEAR,
                    mask=is_matrix,
                    mu_dtype="float32",
                    nu_dtype="float32",
                ),
                name="LaProp(schedules, mask, float32 moments)",
            ),
        ],
        cases={
            "laprop": same(0.1, eps=1e-3),
            "laprop, other": same(COSINES, 0.95, 0.5, 1e-2),
            "laprop, decay": same(
                LINEARS, eps=1e-3, weight_decay=LINEARS, mask=is_matrix
            ),
        },
        by_hand={"laprop": ByHand(eqopt.ScaleByLaProp(B1, B2, EPS), laprop_by_hand)},
    ),
]
