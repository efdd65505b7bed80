"""Adan: momentum of the gradients, and of their differences."""

import optax

import eqopt

from ...laws.row import LINEAR, halve, row
from ...parity.case import COSINES, both, is_matrix
from ..method import Method, same


METHODS = [
    Method(
        eqopt.Adan,
        idea="Nesterov momentum from differences of gradients",
        in_optax="adan",
        rates=(0.0032, 0.0032, 0.0032, 0.0032),
        deviates="it is that of its authors",
        laws=[
            row(eqopt.ScaleByAdan, b1=0.9, b2=0.8, b3=0.9, eps=1e-3, eps_root=1e-3),
            row(
                eqopt.Adan,
                at=0.01,
                learning_rate=0.1,
                b1=0.5,
                b2=0.6,
                b3=0.7,
                weight_decay=0.3,
            ),
            row(
                lambda: eqopt.Adan(
                    LINEAR,
                    weight_decay=halve,
                    mask=is_matrix,
                    mu_dtype="float32",
                    nu_dtype="float32",
                ),
                name="Adan(schedules, mask, float32 moments)",
            ),
        ],
        cases={
            # At b2 = 0.5, Optax's 1 - b2 is right. See `departures/test_adam.py`.
            "adan": same(0.1, b2=0.5, theirs={"eps_root": 0.0}, converts=True),
            "adan, other": same(COSINES, 0.7, 0.5, 0.8, 1e-3, 1e-2),
            "scale_by_adan": both(
                eqopt.ScaleByAdan, optax.scale_by_adan, 0.9, 0.5, eps_root=1e-4
            ),
        },
    ),
]
