"""Grams: as far as Adam would go, in the direction of the gradient."""

import numpy as np

import eqopt

from ...laws.row import row
from ...parity.by_hand import B1, B2, EPS
from ...parity.moving import DECAY, RATE, with_decay
from ..method import Method


def grams_by_hand(grads):
    m = v = 0
    for t, g in enumerate(grads, 1):
        m = B1 * m + (1 - B1) * g
        v = B2 * v + (1 - B2) * g**2
        rate = np.sqrt(1 - B2**t) / (1 - B1**t)
        yield (
            rate
            * np.where(g > 0, 1, np.where(g < 0, -1, 0))
            * abs(m)
            / (np.sqrt(v) + EPS)
        )


METHODS = [
    Method(
        eqopt.Grams,
        idea="Adam's step size with the sign of the gradient",
        nearest="Adam",
        rates=(0.0032, 0.01, 0.0032, 0.001),
        laws=[
            row(eqopt.ScaleByGrams, b1=0.8, b2=0.9, eps=1e-3),
            row(eqopt.Grams, at=0.01, learning_rate=0.1, b1=0.5, weight_decay=0.3),
        ],
        by_hand={
            "grams": with_decay(
                eqopt.Grams(RATE, B1, B2, EPS, weight_decay=DECAY), grams_by_hand
            )
        },
    ),
]
