"""COCOB: each element bets on its own gradients, and needs no learning rate."""

import optax

import eqopt

from ...laws.row import LINEAR, row
from ...parity.case import LINEARS, Case, is_matrix
from ..method import Method, same


METHODS = [
    Method(
        eqopt.COCOB,
        idea="coin betting: no learning rate at all",
        in_optax="contrib.cocob",
        default_rate=1.0,
        rates=(0.0001, 0.0001, 0.0001, 0.0001),
        laws=[
            row(eqopt.ScaleByCOCOB, alpha=50.0, eps=1e-3),
            row(eqopt.COCOB, alpha=50.0, eps=1e-3, weight_decay=0.1),
            row(
                lambda: eqopt.COCOB(
                    LINEAR,
                    weight_decay=0.1,
                    mask=is_matrix,
                    accumulator_dtype="float32",
                ),
                name="COCOB(schedule, mask, float32 sums)",
            ),
        ],
        cases={
            "cocob": same(),
            "cocob, masked": same(LINEARS, 5.0, weight_decay=0.3, mask=is_matrix),
            "scale_by_cocob": Case(
                eqopt.ScaleByCOCOB(10.0, 1e-3), optax.contrib.scale_by_cocob(10.0, 1e-3)
            ),
        },
    ),
]
