"""Schedule-Free+: AdamW without a schedule, with step sizes from the loss."""

import eqopt

from ...laws.row import LINEAR, Evaluated, evaluated, is_matrix, row
from ..method import Method


METHODS = [
    Method(
        eqopt.ScheduleFreePlus,
        idea="AdamW, an average of the parameters, and step sizes from the loss",
        nearest="ScheduleFreeAdamW",
        default_rate=1.0,
        rates=(0.032, 0.032, 0.1, 0.1),
        ratio=None,
        laws=[
            row(
                # Random gradients do not lower the loss, so long steps would lead far
                # away.
                evaluated(eqopt.ScheduleFreePlus, learning_rate=0.01, anneal_steps=3),
                name="ScheduleFreePlus",
                learning_rate=0.05,
                b1=0.8,
                b2=0.9,
                weight_decay=0.3,
                beta=0.8,
                max_beta=0.95,
                polyak_beta=0.5,
                weight_power=1.0,
                weight_lr_power=1.0,
            ),
            row(
                lambda: Evaluated(
                    eqopt.ScheduleFreePlus(
                        LINEAR,
                        weight_decay=LINEAR,
                        mask=is_matrix,
                        average_from=2,
                        mu_dtype="float32",
                        state_dtype="float32",
                    )
                ),
                name="ScheduleFreePlus(schedules, mask, float32)",
                exempt={
                    "huge_and_tiny_gradients": "the decay has the square "
                    "of the step size, which is the loss over the size of the gradients"
                },
            ),
        ],
    ),
]
