"""LARS: momentum with steps in proportion to each layer."""

import eqopt

from ...laws.row import LINEAR, row
from ...parity.case import LINEARS, is_matrix
from ..method import Method, same


METHODS = [
    Method(
        eqopt.LARS,
        idea="momentum scaled by the norm of each layer; for huge batches",
        in_optax="lars",
        default_rate=1.0,
        rates=(0.32, 0.1, 1, 1),
        laws=[
            row(
                eqopt.LARS,
                at=0.1,
                learning_rate=0.2,
                weight_decay=0.3,
                trust_coefficient=0.1,
                eps=1e-2,
                momentum=0.5,
            ),
            row(
                lambda: eqopt.LARS(
                    LINEAR, 0.1, is_matrix, trust_ratio_mask=is_matrix, nesterov=True
                ),
                name="LARS(schedule, masks, nesterov)",
            ),
        ],
        cases={
            "lars": same(0.1, converts=True),
            "lars, other": same(
                LINEARS, 0.3, is_matrix, 0.2, 0.1, is_matrix, 0.5, True
            ),
            "lars, decay": same(0.1, LINEARS, trust_coefficient=0.1),
        },
    ),
]
