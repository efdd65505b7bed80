"""Averages of the parameters in the place of a schedule.

Optax takes the schedule of the weights one step ahead of the inner optimizer's; with one
that is late, both do the same.
"""

import jax.numpy as jnp
import optax

import eqopt

from ..case import LINEAR, Case, is_matrix


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
            eqopt.AdamW(LINEAR[0], b1=0.0, weight_decay=0.2),
            LINEAR[0],
            b1=0.7,
            weight_lr_power=1.0,
            state_dtype=jnp.float32,
        ),
        optax.contrib.schedule_free(
            optax.adamw(LINEAR[1], b1=0.0, weight_decay=0.2),
            late(LINEAR[1]),
            b1=0.7,
            weight_lr_power=1.0,
            state_dtype=jnp.float32,
        ),
    ),
    "schedule_free_sgd": Case(
        eqopt.ScheduleFreeSGD(), optax.contrib.schedule_free_sgd()
    ),
    "schedule_free_sgd, other": Case(
        eqopt.ScheduleFreeSGD(0.1, b1=0.5, weight_decay=0.3, weight_lr_power=0.0),
        optax.contrib.schedule_free_sgd(
            0.1, b1=0.5, weight_decay=0.3, weight_lr_power=0.0
        ),
    ),
    "schedule_free_sgd, warm-up": Case(
        eqopt.ScheduleFreeSGD(0.1, 3, weight_decay=0.3, mask=is_matrix),
        optax.contrib.schedule_free(
            optax.chain(optax.add_decayed_weights(0.3, is_matrix), optax.sgd(WARM_UP)),
            late(WARM_UP),
        ),
    ),
    "schedule_free_adamw": Case(
        eqopt.ScheduleFreeAdamW(), optax.contrib.schedule_free_adamw()
    ),
    "schedule_free_adamw, other": Case(
        eqopt.ScheduleFreeAdamW(
            0.1, None, 0.5, 0.9, 1e-3, weight_decay=0.3, weight_lr_power=1.0
        ),
        optax.contrib.schedule_free_adamw(
            0.1, None, 0.5, 0.9, 1e-3, weight_decay=0.3, weight_lr_power=1.0
        ),
    ),
    "schedule_free_adamw, warm-up": Case(
        eqopt.ScheduleFreeAdamW(0.1, 3, weight_decay=0.3, mask=is_matrix),
        optax.contrib.schedule_free(
            optax.adamw(WARM_UP, b1=0.0, weight_decay=0.3, mask=is_matrix),
            late(WARM_UP),
        ),
    ),
}
