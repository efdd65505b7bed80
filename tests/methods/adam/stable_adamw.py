"""StableAdamW: AdamW with shorter steps where the second moment is out of date."""

import numpy as np
import optax

import eqopt

from ...laws.row import LINEAR, is_matrix, row
from ...parity.by_hand import B1, B2, EPS
from ...parity.case import ByHand
from ..method import Method


def stable_adam_by_hand(grads):
    """With moments that have no bias, as in the code of optimi."""
    m = v = 0
    for t, g in enumerate(grads, 1):
        a1, a2 = ((b**t - b) / (b**t - 1) for b in (B1, B2))
        m = a1 * m + (1 - a1) * g
        v = a2 * v + (1 - a2) * g**2
        rms = np.sqrt(np.mean(g**2 / np.maximum(v, EPS**2)))
        yield m / (np.sqrt(v) + EPS) / max(1, rms)


METHODS = [
    Method(
        eqopt.StableAdamW,
        idea="AdamW with shorter steps when gradients suddenly grow",
        theirs=lambda rate: optax.adamw(rate, b2=0.99, eps=1e-6, weight_decay=1e-2),
        nearest="AdamW",
        rates=(0.0032, 0.0032, 0.0032, 0.001),
        laws=[
            row(eqopt.ScaleByStableAdam, b1=0.8, b2=0.9, eps=1e-3),
            row(
                lambda learning_rate=LINEAR, **data: eqopt.StableAdamW(
                    learning_rate, mask=is_matrix, **data
                ),
                name="StableAdamW",
                learning_rate=0.1,
                b1=0.5,
                weight_decay=0.3,
            ),
        ],
        by_hand={
            "stable_adamw": ByHand(
                eqopt.ScaleByStableAdam(B1, B2, EPS), stable_adam_by_hand
            )
        },
    ),
]
