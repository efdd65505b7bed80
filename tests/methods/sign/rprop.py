"""Rprop: a step size for each element, by whether its gradient keeps its sign."""

import eqopt

from ...laws.row import LINEAR, row
from ..method import Method


RELATIVE = {
    "test_hyperparameters_take_schedules": "a number is where the step sizes start, a "
    "schedule multiplies all of them"
}

METHODS = [
    Method(
        eqopt.Rprop,
        idea="a separate step size for each coordinate; for full batches",
        in_optax="rprop",
        default_rate=0.01,
        rates=(0.0001, 0.0001, 0.0001, 0.032),
        deviates="Optax's is one step late",
        laws=[
            row(
                eqopt.ScaleByRprop,
                at=0.01,
                exempt=RELATIVE,
                learning_rate=0.1,
                eta_minus=0.4,
                eta_plus=4.8,  # above one for a whole population
                min_step_size=1e-3,
                max_step_size=2.0,
            ),
            row(
                eqopt.Rprop,
                at=0.01,
                exempt=RELATIVE,
                learning_rate=0.1,
                eta_minus=0.4,
                min_step_size=1e-3,
                max_step_size=2.0,
            ),
            row(lambda: eqopt.Rprop(LINEAR), name="Rprop(schedule)"),
        ],
    ),
]
