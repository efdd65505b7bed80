"""Averages of the parameters, which replace a schedule of the learning rate."""

import eqopt

from ..row import LINEAR, around, row


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
]
