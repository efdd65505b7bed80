"""Averages of the parameters in the place of a schedule."""

import eqopt

from ..row import LINEAR, around, is_matrix, row


ROWS = [
    *around(eqopt.ScheduleFree, learning_rate=0.1),
    row(
        lambda learning_rate=0.1, **data: eqopt.ScheduleFree(
            eqopt.SGD(learning_rate), learning_rate, **data
        ),
        name="ScheduleFree",
        learning_rate=0.2,
        b1=0.8,
        weight_lr_power=1.0,
    ),
    row(
        lambda: eqopt.ScheduleFree(
            eqopt.Adam(LINEAR, b1=0.0), LINEAR, state_dtype="float32"
        ),
        name="ScheduleFree(schedule, float32)",
    ),
    row(
        eqopt.ScheduleFreeSGD,
        learning_rate=0.2,
        b1=0.8,
        weight_decay=0.3,
        weight_lr_power=1.0,
    ),
    row(
        lambda: eqopt.ScheduleFreeSGD(
            0.1, 3, weight_decay=LINEAR, state_dtype="float32", mask=is_matrix
        ),
        name="ScheduleFreeSGD(warm-up, mask)",
    ),
    row(
        eqopt.ScheduleFreeAdamW,
        learning_rate=0.2,
        b1=0.8,
        b2=0.9,
        eps=1e-3,
        weight_decay=0.3,
        weight_lr_power=1.0,
    ),
    row(
        lambda: eqopt.ScheduleFreeAdamW(LINEAR, 3, mask=is_matrix, nu_dtype="float32"),
        name="ScheduleFreeAdamW(warm-up of a schedule)",
    ),
]
