"""MOSO: RMSProp of the momentum, in the eigenbasis of its shorter side."""

import numpy as np
import optax

import eqopt

from ...laws.row import LINEAR, is_matrix, row
from ...parity.by_hand import B1, B2, EPS
from ...parity.case import ByHand
from ...parity.matrices import NUMBERS, eigenvectors, power_iteration
from ..method import Method
from .soap import INPUTS_FIRST, inputs_first


BETA = 0.8


def moso_by_hand(frequency=1):
    def updates(grads):
        m = v = c = 0
        q = np.zeros(())
        for t, g in enumerate(grads, 1):
            is_wide = g.shape[0] <= g.shape[1]
            m = B1 * m + (1 - B1) * (g if is_wide else g.T)
            c = BETA * c + (1 - BETA) * m @ m.T
            if t == 1:
                q = eigenvectors(c)
            elif t % frequency == 0:
                q, v = power_iteration(c, q, v, 0)
            v = B2 * v + (1 - B2) * (q.T @ m) ** 2
            u = q @ (q.T @ m / (np.sqrt(v) + EPS))
            yield u if is_wide else u.T

    return updates


def scale_by_moso(frequency=1, numbers=NUMBERS):
    return eqopt.ScaleByMOSO(
        B1, B2, BETA, EPS, frequency, weight_dimension_numbers=numbers
    )


METHODS = [
    Method(
        eqopt.MOSO,
        idea="RMSProp of the momentum in the eigenbasis of each matrix's shorter side",
        theirs=lambda rate: optax.adamw(rate, weight_decay=0.01),
        nearest="AdamW",
        default_rate=3e-4,
        rates=(0.0032, 0.001, 0.001, 0.001),
        ratio=None,
        laws=[
            row(
                eqopt.ScaleByMOSO,
                exempt={
                    "test_a_second_pass_changes_nothing": (
                        "a GPU computes the basis by products"
                    )
                },
                b1=0.8,
                b2=0.9,
                eps=1e-3,
                shampoo_beta=0.7,
            ),
            row(eqopt.MOSO, at=0.01, learning_rate=0.1, b1=0.5, weight_decay=0.3),
            row(
                lambda: eqopt.MOSO(
                    LINEAR,
                    weight_decay=LINEAR,
                    precondition_frequency=2,
                    mask=is_matrix,
                    mu_dtype="float32",
                    fallback=eqopt.SGD(0.1),
                ),
                name="MOSO(schedules, mask, fallback)",
            ),
        ],
        by_hand={
            "moso": ByHand(scale_by_moso(), moso_by_hand(), (4, 4)),
            "moso, wide": ByHand(scale_by_moso(3), moso_by_hand(3), (3, 6)),
            "moso, tall": ByHand(scale_by_moso(2), moso_by_hand(2), (6, 4)),
            "moso, inputs first": ByHand(
                scale_by_moso(numbers=INPUTS_FIRST),
                inputs_first(moso_by_hand()),
                (4, 4),
            ),
        },
    ),
]
