"""Prodigy: Adam with an estimate of the distance to the solution."""

import optax

import eqopt

from ...laws.row import LINEAR, row
from ...parity.case import LINEARS, NOT_FLOAT16, Case, is_matrix
from ..method import Method, same


METHODS = [
    Method(
        eqopt.Prodigy,
        idea="AdamW that finds its learning rate",
        in_optax="contrib.prodigy",
        default_rate=1.0,
        rates=(0.032, 0.1, 0.1, 0.1),
        laws=[
            row(
                eqopt.Prodigy,
                learning_rate=0.5,
                b1=0.8,
                b2=0.9,
                b3=0.7,
                eps=1e-3,
                estim_lr0=1e-2,
                estim_lr_coef=2.0,
                weight_decay=0.3,
            ),
            row(
                lambda: eqopt.Prodigy(
                    LINEAR,
                    estim_lr0=0.1,
                    weight_decay=LINEAR,
                    safeguard_warmup=True,
                    mask=is_matrix,
                    mu_dtype="float32",
                    nu_dtype="float32",
                ),
                name="Prodigy(schedule, mask, float32 moments)",
            ),
        ],
        cases={
            "prodigy": same(dtypes=NOT_FLOAT16),
            "prodigy, other": Case(
                eqopt.Prodigy(
                    0.5,
                    b1=0.8,
                    b2=0.9,
                    b3=0.7,
                    eps=1e-3,
                    estim_lr0=0.1,
                    estim_lr_coef=2.0,
                    weight_decay=0.3,
                ),
                optax.contrib.prodigy(0.5, (0.8, 0.9), 0.7, 1e-3, 0.1, 2.0, 0.3),
            ),
            "prodigy, schedule": same(LINEARS, estim_lr0=0.1, safeguard_warmup=True),
        },
    ),
]
