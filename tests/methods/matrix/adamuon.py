"""AdaMuon: orthogonal steps, divided element by element by a second moment."""

import numpy as np

import eqopt

from ...laws.row import LINEAR, is_matrix, row
from ...parity.by_hand import B1, EPS
from ...parity.case import ByHand
from ...parity.matrices import NUMBERS, TABLES, newton_schulz
from ..method import Method


STANDARD, DION = (TABLES[name][0] for name in ("standard", "dion"))


def adamuon_by_hand(rows, nesterov=True, rms=0.2):
    def updates(grads):
        m = v = 0
        for g in grads:
            m = B1 * m + (1 - B1) * g
            x = (1 - B1) * g + B1 * m if nesterov else m
            o = newton_schulz(np.sign(x), rows)
            v = B1 * v + (1 - B1) * o**2
            u = o / (np.sqrt(v) + EPS)
            yield rms * np.sqrt(g.size) * u / (np.linalg.norm(u) + EPS)

    return updates


def scale_by_adamuon(**options):
    return eqopt.ScaleByAdaMuon(
        beta=B1, eps=EPS, weight_dimension_numbers=NUMBERS, **options
    )


METHODS = [
    Method(
        eqopt.AdaMuon,
        idea="orthogonal steps, adapted element by element",
        nearest="Muon",
        default_rate=0.001,
        rates=(0.0032, 0.001, 0.001, 0.0032),
        ratio=None,
        laws=[
            row(eqopt.ScaleByAdaMuon, beta=0.8, eps=1e-3, consistent_rms=0.5),
            row(
                lambda learning_rate=LINEAR, **data: eqopt.AdaMuon(
                    learning_rate,
                    "cans",
                    mask=is_matrix,
                    nesterov=False,
                    mu_dtype="float32",
                    **data,
                ),
                name="AdaMuon",
                learning_rate=0.1,
                weight_decay=0.3,
            ),
        ],
        by_hand={
            "adamuon, tall": ByHand(
                scale_by_adamuon(coefficients="dion", consistent_rms=0.5),
                adamuon_by_hand(DION, rms=0.5),
                (6, 4),
            ),
            "adamuon, wide": ByHand(
                scale_by_adamuon(steps=3, nesterov=False),
                adamuon_by_hand(STANDARD[:3], nesterov=False),
                (3, 5),
            ),
        },
    ),
]
