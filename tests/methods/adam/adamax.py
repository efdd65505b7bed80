"""Adamax: Adam with the largest gradient instead of the mean square."""

import eqopt

from ...laws.row import row
from ...parity.case import COSINES, LINEARS, is_matrix
from ..method import Method, same


METHODS = [
    Method(
        eqopt.Adamax,
        idea="the largest gradient instead of the mean square",
        in_optax="adamax",
        default_rate=0.002,
        rates=(0.0032, 0.032, 0.0032, 0.0032),
        laws=[
            row(eqopt.ScaleByAdamax, b1=0.8, b2=0.9, eps=1e-3),
            row(eqopt.Adamax, at=0.01, learning_rate=0.1, b1=0.5, eps=1e-3),
        ],
        cases={
            "adamax": same(0.1, converts=True),
            "adamax, other": same(COSINES, 0.5, 0.8, 0.1),
        },
    ),
    Method(
        eqopt.AdamaxW,
        idea="Adamax with decoupled weight decay",
        in_optax="adamaxw",
        default_rate=0.002,
        rates=(0.0032, 0.032, 0.0032, 0.0032),
        laws=[row(eqopt.AdamaxW, at=0.01, learning_rate=0.1, weight_decay=0.3)],
        cases={
            "adamaxw": same(0.1),
            "adamaxw, masked": same(LINEARS, weight_decay=0.3, mask=is_matrix),
        },
    ),
]
