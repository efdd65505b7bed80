"""The table of schedules that every law is tested on."""

import jax.numpy as jnp
import optax
import pytest

from eqopt import schedules

from .beyond import BEYOND
from .case import Case
from .rest_of_optax import REST_OF_OPTAX


def _reciprocal(count):
    # Good up to the count 19, and after that infinite: `Join` must not ask.
    return 0.01 / (20 - count).astype(jnp.float32)


_optax_join = optax.join_schedules(
    [
        optax.linear_schedule(0.0, 0.5, 5),
        optax.constant_schedule(0.5),
        optax.cosine_decay_schedule(0.5, 30, 0.2),
    ],
    [5, 20],
)

CASES = {
    "constant": Case(schedules.Constant(0.3), optax.constant_schedule(0.3), 1),
    "linear_up": Case(
        schedules.Linear(0.0, 1e-3, 50), optax.linear_schedule(0.0, 1e-3, 50), 50
    ),
    "linear_later": Case(
        schedules.Linear(init_value=0.7, end_value=-0.1, transition_steps=33,
                         transition_begin=7),
        optax.linear_schedule(0.7, -0.1, 33, 7),
        40,
    ),
    "linear_short": Case(
        schedules.Linear(1.0, 0.1, 1), optax.linear_schedule(1.0, 0.1, 1), 1
    ),
    "linear_huge": Case(
        schedules.Linear(1.0, 0.0, 2**31 - 1),
        optax.linear_schedule(1.0, 0.0, 2**31 - 1),
        2**31 - 2000,
    ),
    "polynomial_square": Case(
        schedules.Polynomial(1.0, 0.01, 2, 100, 5),
        optax.polynomial_schedule(1.0, 0.01, 2, 100, 5),
        105,
    ),
    "polynomial_root": Case(
        schedules.Polynomial(0.2, 0.9, 0.5, 47), # upwards
        optax.polynomial_schedule(0.2, 0.9, 0.5, 47),
        47,
    ),
    "polynomial_cubic": Case(
        schedules.Polynomial(1.0, 0.0, 3.3, 1000),
        optax.polynomial_schedule(1.0, 0.0, 3.3, 1000),
        1000,
    ),
    "polynomial_flat": Case(
        schedules.Polynomial(1.0, 0.5, 0, 10),
        optax.polynomial_schedule(1.0, 0.5, 0, 10),
        10,
    ),
    "cosine": Case(
        schedules.CosineDecay(1e-2, 100), optax.cosine_decay_schedule(1e-2, 100), 100
    ),
    "cosine_alpha": Case(
        schedules.CosineDecay(init_value=3.0, decay_steps=77, alpha=0.1, exponent=2.5),
        optax.cosine_decay_schedule(3.0, 77, 0.1, 2.5),
        77,
    ),
    "cosine_root": Case(
        schedules.CosineDecay(1.0, 64, exponent=0.5),
        optax.cosine_decay_schedule(1.0, 64, exponent=0.5),
        64,
    ),
    "cosine_short": Case(
        schedules.CosineDecay(1.0, 1, 0.3), optax.cosine_decay_schedule(1.0, 1, 0.3), 1
    ),
    "cosine_long": Case(
        schedules.CosineDecay(1.0, 1_000_000),
        optax.cosine_decay_schedule(1.0, 1_000_000),
        1_000_000,
    ),
    "warmup": Case(
        schedules.WarmupCosineDecay(0.0, 1e-3, 20, 100),
        optax.warmup_cosine_decay_schedule(0.0, 1e-3, 20, 100),
        100,
    ),
    "warmup_full": Case(
        schedules.WarmupCosineDecay(
            init_value=0.1, peak_value=0.9, warmup_steps=7, decay_steps=61,
            end_value=0.02, exponent=1.7,
        ),
        optax.warmup_cosine_decay_schedule(0.1, 0.9, 7, 61, 0.02, 1.7),
        61,
    ),
    "warmup_none": Case(
        schedules.WarmupCosineDecay(0.5, 1.0, 0, 40, 0.25),
        optax.warmup_cosine_decay_schedule(0.5, 1.0, 0, 40, 0.25),
        40,
    ),
    "warmup_short": Case(
        schedules.WarmupCosineDecay(0.0, 1.0, 1, 2, 0.1),
        optax.warmup_cosine_decay_schedule(0.0, 1.0, 1, 2, 0.1),
        2,
    ),
    "join": Case(
        schedules.Join(
            [
                schedules.Linear(0.0, 0.5, 5),
                schedules.Constant(0.5),
                schedules.CosineDecay(0.5, 30, 0.2),
            ],
            [5, 20],
        ),
        _optax_join,
        50,
    ),
    "join_one": Case(
        schedules.Join([schedules.Linear(1.0, 0.0, 20)], []),
        optax.join_schedules([optax.linear_schedule(1.0, 0.0, 20)], []),
        20,
    ),
    "join_functions": Case(
        schedules.Join([_reciprocal, lambda count: 0.5], boundaries=(20,)),
        optax.join_schedules([_reciprocal, lambda count: 0.5], [20]),
        20,
    ),
    "join_nested": Case(
        schedules.Join(
            [
                schedules.Constant(1),
                schedules.Join(
                    [schedules.Linear(1.0, 2.0, 4), schedules.Linear(2.0, 0.0, 8)], [6]
                ),
            ],
            [20],
        ),
        optax.join_schedules(
            [
                optax.constant_schedule(1.0),
                optax.join_schedules(
                    [optax.linear_schedule(1.0, 2.0, 4),
                     optax.linear_schedule(2.0, 0.0, 8)],
                    [6],
                ),
            ],
            [20],
        ),
        34,
    ),
    **REST_OF_OPTAX,
    **BEYOND,
}  # fmt: skip


# The further cases of a schedule belong to the long tail.
FIRST = {type(case.ours): case for case in reversed(CASES.values())}


@pytest.fixture(
    params=[
        pytest.param(
            case,
            id=name,
            marks=[] if FIRST[type(case.ours)] is case else [pytest.mark.slow],
        )
        for name, case in CASES.items()
    ]
)
def case(request) -> Case:
    return request.param
