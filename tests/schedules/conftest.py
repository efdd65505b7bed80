"""The table of schedules that every law is tested on."""

import jax.numpy as jnp
import optax
import pytest

from eqopt import schedules

from .beyond import BEYOND
from .case import Case
from .of_optax import OF_OPTAX


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
    **OF_OPTAX,
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
    "join_functions": Case(
        schedules.Join([_reciprocal, lambda count: 0.5], boundaries=(20,)),
        optax.join_schedules([_reciprocal, lambda count: 0.5], [20]),
        20,
    ),
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
