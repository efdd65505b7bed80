"""SGD and AdamW with averages of the parameters instead of a schedule."""

import optax

import eqopt

from ...laws.row import LINEAR, row
from ...parity.case import Case, is_matrix
from ..method import Method, same


def late(schedule):
    return lambda count: schedule(count - 1)


WARM_UP = optax.linear_schedule(0.0, 0.1, 3)

METHODS = [
    Method(
        eqopt.ScheduleFreeSGD,
        idea="SGD and an average of the parameters",
        in_optax="contrib.schedule_free_sgd",
        default_rate=1.0,
        rates=(0.032, 0.001, 0.01, 0.32),
        laws=[
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
        ],
        cases={
            "schedule_free_sgd": same(),
            "schedule_free_sgd, other": same(
                0.1, b1=0.5, weight_decay=0.3, weight_lr_power=0.0
            ),
            "schedule_free_sgd, warm-up": Case(
                eqopt.ScheduleFreeSGD(0.1, 3, weight_decay=0.3, mask=is_matrix),
                optax.contrib.schedule_free(
                    optax.chain(
                        optax.add_decayed_weights(0.3, is_matrix), optax.sgd(WARM_UP)
                    ),
                    late(WARM_UP),
                ),
            ),
        },
    ),
    Method(
        eqopt.ScheduleFreeAdamW,
        idea="AdamW and an average of the parameters",
        in_optax="contrib.schedule_free_adamw",
        default_rate=0.0025,
        rates=(0.01, 0.032, 0.0032, 0.0032),
        laws=[
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
                lambda: eqopt.ScheduleFreeAdamW(
                    LINEAR, 3, mask=is_matrix, nu_dtype="float32"
                ),
                name="ScheduleFreeAdamW(warm-up of a schedule)",
            ),
        ],
        cases={
            "schedule_free_adamw": same(),
            "schedule_free_adamw, other": same(
                0.1, None, 0.5, 0.9, 1e-3, weight_decay=0.3, weight_lr_power=1.0
            ),
            "schedule_free_adamw, warm-up": Case(
                eqopt.ScheduleFreeAdamW(0.1, 3, weight_decay=0.3, mask=is_matrix),
                optax.contrib.schedule_free(
                    optax.adamw(WARM_UP, b1=0.0, weight_decay=0.3, mask=is_matrix),
                    late(WARM_UP),
                ),
            ),
        },
    ),
]
