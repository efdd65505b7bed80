"""D-Adaptation: Adam with a lower bound on the distance to the solution."""

import optax

import eqopt

from ...laws.row import LINEAR, row
from ...parity.case import LINEARS, NOT_FLOAT16, Case, is_matrix
from ..method import Method, same


METHODS = [
    Method(
        eqopt.DAdaptAdamW,
        idea="AdamW that finds its learning rate; older than Prodigy",
        in_optax="contrib.dadapt_adamw",
        default_rate=1.0,
        rates=(0.1, 0.32, 0.32, 0.32),
        laws=[
            row(
                eqopt.DAdaptAdamW,
                learning_rate=0.5,
                b1=0.8,
                b2=0.9,
                eps=1e-3,
                estim_lr0=1e-2,
                weight_decay=0.3,
            ),
            row(
                lambda: eqopt.DAdaptAdamW(
                    LINEAR,
                    estim_lr0=0.1,
                    weight_decay=LINEAR,
                    mask=is_matrix,
                    mu_dtype="float32",
                    nu_dtype="float32",
                ),
                name="DAdaptAdamW(schedule, mask, float32 moments)",
            ),
        ],
        cases={
            "dadapt_adamw": same(dtypes=NOT_FLOAT16),
            "dadapt_adamw, other": Case(
                eqopt.DAdaptAdamW(0.5, 0.8, 0.9, 1e-3, 0.1, 0.3),
                optax.contrib.dadapt_adamw(0.5, (0.8, 0.9), 1e-3, 0.1, 0.3),
            ),
            "dadapt_adamw, schedule": same(LINEARS, estim_lr0=0.1, dtypes=NOT_FLOAT16),
        },
    ),
]
