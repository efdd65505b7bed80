"""LAMB: Adam with steps in proportion to each layer."""

import eqopt

from ...laws.row import LINEAR, row
from ...parity.case import COSINES, LINEARS, is_matrix
from ..method import Method, same


METHODS = [
    Method(
        eqopt.LAMB,
        idea="Adam scaled by the norm of each layer; for huge batches",
        in_optax="lamb",
        default_rate=0.002,
        rates=(0.0032, 0.001, 0.01, 0.01),
        ratio=0.5,
        laws=[
            row(
                eqopt.LAMB,
                at=0.1,
                learning_rate=0.02,
                b1=0.5,
                b2=0.9,
                eps=1e-3,
                eps_root=1e-3,
                weight_decay=0.3,
            ),
            row(
                lambda: eqopt.LAMB(
                    LINEAR,
                    weight_decay=LINEAR,
                    mask=is_matrix,
                    mu_dtype="float32",
                    nu_dtype="float32",
                ),
                name="LAMB(schedules, mask, float32 moments)",
            ),
        ],
        cases={
            "lamb": same(0.1),
            "lamb, other": same(COSINES, 0.5, 0.9, 1e-3, 1e-4, 0.3, is_matrix),
            "lamb, decay": same(0.1, weight_decay=LINEARS, converts=True),
        },
    ),
]
