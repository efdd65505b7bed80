"""MADGRAD: dual averaging with momentum and a cube root."""

import optax

import eqopt

from ...laws.row import LINEAR, row
from ...parity.case import COSINES, LINEARS, both, is_matrix
from ..method import Method, same


METHODS = [
    Method(
        eqopt.MADGRAD,
        idea="dual averaging with a cube root",
        in_optax="contrib.madgrad",
        default_rate=0.01,
        rates=(0.00032, 0.0001, 0.00032, 0.001),
        laws=[
            row(
                eqopt.ScaleByMADGRAD, at=0.01, learning_rate=0.1, momentum=0.5, eps=1e-3
            ),
            row(
                eqopt.MADGRAD,
                at=0.01,
                learning_rate=0.1,
                momentum=0.5,
                weight_decay=0.3,
                eps=1e-3,
            ),
            row(
                lambda: eqopt.MADGRAD(
                    LINEAR, 0.0, LINEAR, 0.0, is_matrix, "float32", nu_dtype="float32"
                ),
                name="MADGRAD(schedules, mask, no eps)",
            ),
        ],
        cases={
            "madgrad": same(0.1),
            "madgrad, decay": same(LINEARS, 0.0, 0.3),
            "scale by madgrad": both(
                eqopt.ScaleByMADGRAD, optax.contrib.scale_by_madgrad, COSINES, 0.5, 1e-3
            ),
        },
    ),
]
