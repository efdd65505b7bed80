"""Wrong arguments beyond the bounds of a field, which `tests/laws/test_bounds.py` has."""

import re
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from eqopt.schedules import (
    SGDR,
    Clipped,
    Constant,
    Join,
    Linear,
    LinearOneCycle,
    MultiStep,
    PiecewiseConstant,
    Polynomial,
    Product,
    ReduceOnPlateau,
    WarmupCosineDecay,
    WarmupDecay,
    WarmupStableDecay,
)


STRING: Any = "a"
STATEFUL: Any = ReduceOnPlateau(1.0)
INF = float("inf")
THREE = jnp.ones(3)
ONE, TWO = Constant(1.0), Constant(2.0)

WRONG = [
    # Kinds of values.
    (lambda: Linear(THREE, 0.0, 3), ["Linear", "`init_value`", "eqx.filter_vmap"]),
    # Several fields.
    (
        lambda: WarmupCosineDecay(0.0, 1.0, 10, 10),
        ["WarmupCosineDecay", "`decay_steps`", "more than `warmup_steps`", "10"],
    ),
    (
        lambda: WarmupStableDecay(0.0, 1.0, 5, 10, 6),
        ["`total_steps`", "`warmup_steps`", "`cooldown_steps`", "5 + 6", "10"],
    ),
    (lambda: LinearOneCycle(9, 1.0, 0.5, 0.4), ["`pct_final`", "`pct_start`", "0.4"]),
    (lambda: ONE.clip(2.0, 1.0), ["`max_value`", "at least `min_value`, 2.0"]),
    # Parts of a run.
    (
        lambda: WarmupDecay(1000, 100.0),
        ["`warmup` and `decay`", "100000", "floats are"],
    ),
    (lambda: WarmupDecay(1000, cycles=[0.5, 1.5]), ["`cycles`", "[0, 500, 1500]"]),
    (lambda: SGDR([ONE]), ["`cosine_kwargs`", "Constant", "Join"]),
    (lambda: WarmupDecay(1000, cycles=0), ["`cycles`", "at least 1", "0"]),
    (
        lambda: WarmupDecay(1000, cycles=[500, 0.4]),
        ["`cycles`", "below `total_steps`", "1000", "[0, 500, 400]", "not the lengths"],
    ),
    (
        lambda: WarmupDecay(1000, 0.1, 450, 0.2, 2),
        ["`warmup` and `decay`", "100 and 450", "cycle 0", "500"],
    ),
    (
        lambda: WarmupDecay(1000, 0.1, 0.8, 0.25, 2),
        ["`rewarmup` and `decay`", "125 and 400", "cycle 1", "500"],
    ),
    # Several schedules.
    (lambda: Join([ONE, TWO], [1, 2]), ["one entry fewer", "2 for 2"]),
    (lambda: Product([ONE, Constant]), ["Product", "`schedules[1]`", "Constant"]),
    (lambda: Join([ONE, STATEFUL], [3]), ["`schedules[1]`", "state"]),
    # Counts at which something changes.
    (lambda: Join([ONE, TWO, ONE], [5, 5]), ["ascend", "(5, 5)", "add up"]),
    (lambda: Join([ONE, TWO], [-1]), ["at least 0", "(-1,)"]),
    (lambda: MultiStep(1.0, [5, 2]), ["MultiStep", "`milestones`", "ascend", "(5, 2)"]),
    (lambda: PiecewiseConstant(1.0, {3: -0.5}), ["boundaries_and_scales[3]", "-0.5"]),
    # Calls.
    (lambda: ONE(1.5), ["Constant", "count", "integer", "1.5", "int(count)"]),
    (
        lambda: ((lambda count: THREE) * ONE)(0),
        ["Product", "`schedules[0]`", "shape (3,)"],
    ),
    (lambda: Clipped(lambda count: "a", 1.0)(0), ["Clipped", "`schedule`", "'a'"]),
]


@pytest.mark.parametrize(("call", "words"), WRONG)
def test_message(call, words):
    with pytest.raises((ValueError, TypeError), match=re.escape(words[0])) as info:
        call()
    for word in words:
        assert word in str(info.value)


def test_what_is_allowed():
    Constant(INF)
    Join([ONE, TWO, ONE], np.array([1, 2]))
    Join((ONE, TWO, ONE), jnp.array([1, 2], jnp.int8))
    Join([ONE, TWO, ONE], [np.int64(1), jnp.array(2)])
    Linear(1, jnp.array(0, jnp.bfloat16), np.int16(3), jnp.array(2, jnp.int8))
    Polynomial(1.0, 2.0, 0, 0)
    WarmupCosineDecay(0.0, 1.0, jnp.array(3, jnp.int8), jnp.array(5))
