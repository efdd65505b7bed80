"""Averages of the parameters, which replace a schedule of the learning rate.

Optax evaluates the schedule for weights one step ahead of the inner optimizer's. If
that schedule is one step late, both libraries agree.
"""

import jax.numpy as jnp
import optax

import eqopt

from ..case import LINEARS, Case


def late(schedule):
    return lambda count: schedule(count - 1)


WARM_UP = optax.linear_schedule(0.0, 0.1, 3)

CASES = {
    "schedule_free": Case(
        eqopt.ScheduleFree(eqopt.SGD(0.1), 0.1),
        optax.contrib.schedule_free(optax.sgd(0.1), 0.1),
    ),
    "schedule_free, schedule": Case(
        eqopt.ScheduleFree(
            eqopt.AdamW(LINEARS[0], b1=0.0, weight_decay=0.2),
            LINEARS[0],
            b1=0.7,
            weight_lr_power=1.0,
            state_dtype=jnp.float32,
        ),
        optax.contrib.schedule_free(
            optax.adamw(LINEARS[1], b1=0.0, weight_decay=0.2),
            late(LINEARS[1]),
            b1=0.7,
            weight_lr_power=1.0,
            state_dtype=jnp.float32,
        ),
    ),
}
