"""Optimizers that look at the sign of the gradient."""

import eqopt

from ..row import LINEAR, row


RELATIVE = {
    "test_hyperparameters_take_schedules": "a number is where the step sizes start, a "
    "schedule multiplies all of them"
}

ROWS = [
    row(eqopt.ScaleByLion, b1=0.8, b2=0.9),
    row(lambda: eqopt.ScaleByLion(mode="smooth"), name="ScaleByLion(smooth)"),
    row(lambda: eqopt.ScaleByLion(mode="refined"), name="ScaleByLion(refined)"),
    row(
        lambda learning_rate=0.01, **data: eqopt.Lion(learning_rate, **data),
        name="Lion",
        learning_rate=0.1,
        b1=0.5,
        b2=0.7,
        weight_decay=0.3,
    ),
    row(eqopt.ScaleBySign),
    row(
        lambda learning_rate=0.01: eqopt.SignSGD(learning_rate),
        name="SignSGD",
        learning_rate=0.1,
    ),
    row(
        lambda learning_rate=0.01, **data: eqopt.Signum(learning_rate, **data),
        name="Signum",
        learning_rate=0.1,
        beta=0.5,
    ),
    row(
        lambda: eqopt.Signum(LINEAR, accumulator_dtype="float32"),
        name="Signum(schedule, float32 momentum)",
    ),
    row(
        lambda learning_rate=0.01, **data: eqopt.ScaleByRprop(learning_rate, **data),
        name="ScaleByRprop",
        exempt=RELATIVE,
        learning_rate=0.1,
        eta_minus=0.4,
        eta_plus=4.8,  # above one for a whole population
        min_step_size=1e-3,
        max_step_size=2.0,
    ),
    row(
        lambda learning_rate=0.01, **data: eqopt.Rprop(learning_rate, **data),
        name="Rprop",
        exempt=RELATIVE,
        learning_rate=0.1,
        eta_minus=0.4,
        min_step_size=1e-3,
        max_step_size=2.0,
    ),
    row(lambda: eqopt.Rprop(LINEAR), name="Rprop(schedule)"),
]
