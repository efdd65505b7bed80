"""NAMO: orthogonal steps, as long as the momentum is relative to the gradients."""

import numpy as np

import eqopt

from ...laws.row import LINEAR, is_matrix, row
from ...parity.by_hand import B1, B2, EPS
from ...parity.case import ByHand
from ...parity.matrices import NUMBERS, TABLES, newton_schulz
from ..method import Method


DION = TABLES["dion"][0]


def namo_by_hand(by_column=False, nesterov=True, rms=0.2, clamp=0.75, rows=DION):
    """In each step, the factors and the orthogonal update, not yet multiplied."""
    axis = 0 if by_column else None

    def steps(grads):
        m = v = 0
        for t, g in enumerate(grads, 1):
            m = B1 * m + (1 - B1) * g
            v = B2 * v + (1 - B2) * np.sum(g**2, axis)
            x = B1 * m + (1 - B1) * g if nesterov else m
            alpha = np.linalg.norm(x, axis=axis) / (np.sqrt(v) + EPS)
            if by_column:
                alpha = np.clip(alpha, clamp * alpha.mean(), alpha.mean() / clamp)
            alpha = alpha * np.sqrt(1 - B2**t) / (1 - B1**t)
            yield alpha, rms * np.sqrt(max(g.shape)) * newton_schulz(x, rows)

    return steps


def updates_by_hand(**options):
    return lambda grads: (alpha * u for alpha, u in namo_by_hand(**options)(grads))


def scale_by_namo(**options):
    return eqopt.ScaleByNAMO(
        "dion", beta=B1, b2=B2, eps=EPS, weight_dimension_numbers=NUMBERS, **options
    )


METHODS = [
    Method(
        eqopt.NAMO,
        idea="orthogonal steps, as long as the momentum is relative to the gradients",
        nearest="Muon",
        default_rate=0.01,
        rates=(0.0032, 0.001, 0.001, 0.0032),
        laws=[
            row(
                eqopt.ScaleByNAMO,
                beta=0.8,
                b2=0.9,
                eps=1e-3,
                weight_decay=0.3,
                consistent_rms=0.5,
            ),
            row(
                lambda clamp=0.75: eqopt.ScaleByNAMO(
                    per="column", clamp=clamp, nesterov=False, mu_dtype="float32"
                ),
                name="ScaleByNAMO(columns)",
                clamp=0.9,
            ),
            row(eqopt.NAMO, at=0.01, learning_rate=0.1, beta=0.8, weight_decay=0.3),
            row(
                lambda: eqopt.NAMO(
                    LINEAR,
                    "cans",
                    weight_decay=LINEAR,
                    mask=is_matrix,
                    per="column",
                    fallback=eqopt.SGD(0.1),
                ),
                name="NAMO(schedules, mask, fallback)",
            ),
        ],
        by_hand={
            "namo, tall": ByHand(
                scale_by_namo(consistent_rms=0.5), updates_by_hand(rms=0.5), (6, 4)
            ),
            "namo, wide": ByHand(
                scale_by_namo(nesterov=False), updates_by_hand(nesterov=False), (3, 5)
            ),
            "namo, columns": ByHand(
                scale_by_namo(per="column", clamp=0.9),
                updates_by_hand(by_column=True, clamp=0.9),
                (3, 5),
            ),
        },
    ),
]
