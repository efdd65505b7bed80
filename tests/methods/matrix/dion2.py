"""Dion2: orthogonal steps of the rows or columns that have the most to say."""

import functools

import numpy as np

import eqopt

from ...laws.row import row
from ...parity.by_hand import B2, EPS
from ...parity.case import ByHand
from ...parity.matrices import NUMBERS, TABLES, newton_schulz
from ..method import Method


STANDARD = TABLES["standard"][0]
DECAY, FRACTION = 0.8, 0.4
# For single rows, as the laws have them. (Their only singular value comes in at 1, where
# Polar Express makes rounding errors 150 times as large.)
STEADY = "standard"


def dion2_by_hand(grads, rows=STANDARD):
    m = np.zeros_like(grads[0])
    for g in grads:
        m = m + g
        # Rows of a wide matrix, columns of a tall one.
        x = m if g.shape[0] <= g.shape[1] else m.T
        selected = np.argsort(-np.abs(x).sum(1))[: int(np.ceil(FRACTION * len(x)))]
        u = np.zeros_like(x)
        u[selected] = newton_schulz(x[selected], rows, EPS)
        x[selected] *= DECAY
        yield np.sqrt(g.shape[0] / g.shape[1]) * (u if u.shape == g.shape else u.T)


def nordion2_by_hand(grads):
    m, v = np.zeros_like(grads[0]), np.zeros(len(grads[0]))
    for g in grads:
        m = m + g
        selected = np.argsort(-np.abs(m).sum(1))[: int(np.ceil(FRACTION * len(m)))]
        o = newton_schulz(m[selected], STANDARD, EPS)
        m[selected] *= DECAY
        v[selected] = B2 * v[selected] + (1 - B2) * np.mean(o**2, 1)
        scaled = o / (np.sqrt(v[selected]) + EPS)[:, None]
        u = np.zeros_like(g)
        u[selected] = scaled * np.linalg.norm(o) / (np.linalg.norm(scaled) + EPS)
        yield 0.2 * np.sqrt(max(g.shape)) * u


def scale_by_dion2(b2=None, scale="unit_rms", steps=None):
    arguments = {"scale": scale, "weight_dimension_numbers": NUMBERS}
    return eqopt.ScaleByDion2(FRACTION, DECAY, b2, EPS, "standard", steps, **arguments)


PART = {"ordinary_fields": "`fraction` determines the shapes of the computation"}

METHODS = [
    Method(
        eqopt.Dion2,
        idea="orthogonal steps of the largest rows or columns",
        nearest="Muon",
        default_rate=0.01,
        rates=(0.0032, 0.001, 0.001, 0.0032),
        ratio=None,
        laws=[
            row(
                eqopt.ScaleByDion2,
                {"fraction": 0.5, "coefficients": STEADY, "mu_dtype": "float32"},
                exempt=PART,
                ef_decay=0.7,
                eps=1e-3,
            ),
            row(
                lambda b2=0.95: eqopt.ScaleByDion2(0.5, b2=b2, coefficients=STEADY),
                name="ScaleByDion2(by row)",
                exempt=PART,
                b2=0.8,
            ),
            row(
                eqopt.Dion2,
                at=0.01,
                exempt=PART,
                learning_rate=0.1,
                ef_decay=0.7,
                weight_decay=0.3,
            ),
        ],
        by_hand={
            "dion2, wide": ByHand(scale_by_dion2(), dion2_by_hand, (4, 6)),
            "dion2, tall": ByHand(
                scale_by_dion2(steps=3),
                functools.partial(dion2_by_hand, rows=STANDARD[:3]),
                (6, 3),
            ),
            "nordion2, tall": ByHand(
                scale_by_dion2(B2, "match_rms"), nordion2_by_hand, (6, 4)
            ),
        },
    ),
]
