"""Wrong arguments: each message names the class, the argument, and the way out."""

import re
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from eqopt.schedules import (
    SGDR,
    Clipped,
    Constant,
    CosineDecay,
    CosineOneCycle,
    CosineRestarts,
    Cyclic,
    ExponentialDecay,
    InverseSquareRoot,
    Join,
    Linear,
    LinearOneCycle,
    MultiStep,
    PiecewiseConstant,
    PiecewiseInterpolate,
    Polynomial,
    Product,
    Step,
    Sum,
    WarmupConstant,
    WarmupCosineDecay,
    WarmupDecay,
    WarmupExponentialDecay,
    WarmupStableDecay,
)
from eqopt.schedules._dtypes import largest_steps


STRING: Any = "a"
NUMBER: Any = 5
NAN, INF = float("nan"), float("inf")
THREE = jnp.ones(3)
ONE, TWO = Constant(1.0), Constant(2.0)

WRONG = [
    # Values.
    (lambda: Constant(NAN), ValueError, ["Constant", "`value`", "nan"]),
    (lambda: Constant(THREE), ValueError, ["Constant", "(3,)", "eqx.filter_vmap"]),
    (lambda: Linear(NAN, 0.0, 3), ValueError, ["Linear", "`init_value`", "nan"]),
    (lambda: Linear(0.0, INF, 3), ValueError, ["`end_value`", "is inf"]),
    (lambda: Linear(THREE, 0.0, 3), ValueError, ["`init_value`", "eqx.filter_vmap"]),
    (lambda: Linear(0.0, jnp.array(NAN), 3), ValueError, ["`end_value`", "nan"]),
    (lambda: Linear(True, 0.0, 3), TypeError, ["Linear", "`init_value`", "True"]),
    (lambda: Linear(STRING, 0.0, 3), TypeError, ["Linear", "init_value", "'a'"]),
    (lambda: Polynomial(THREE, 0.0, 1, 3), ValueError, ["Polynomial", "(3,)"]),
    (lambda: Polynomial(NAN, 0.0, 1, 3), ValueError, ["Polynomial", "`init_value`"]),
    (lambda: CosineDecay(NAN, 3), ValueError, ["CosineDecay", "`init_value`"]),
    (lambda: CosineDecay(1.0, 3, NAN), ValueError, ["CosineDecay", "`alpha`"]),
    (lambda: CosineDecay(THREE, 3), ValueError, ["CosineDecay", "eqx.filter_vmap"]),
    (
        lambda: WarmupCosineDecay(0.0, THREE, 1, 3),
        ValueError,
        ["WarmupCosineDecay", "`peak_value`", "eqx.filter_vmap"],
    ),
    (lambda: WarmupCosineDecay(0.0, NAN, 1, 3), ValueError, ["`peak_value`", "nan"]),
    (lambda: WarmupCosineDecay(0.0, 1.0, 1, 3, INF), ValueError, ["`end_value`"]),
    # Exponents.
    (lambda: Polynomial(1.0, 0.0, -1, 3), ValueError, ["`power`", "[0, inf)", "-1"]),
    (lambda: Polynomial(1.0, 0.0, NAN, 3), ValueError, ["`power`", "nan"]),
    (lambda: CosineDecay(1.0, 3, 0.0, -0.5), ValueError, ["`exponent`", "-0.5"]),
    (lambda: WarmupCosineDecay(0.0, 1.0, 1, 3, 0.0, -1), ValueError, ["`exponent`"]),
    # Numbers of steps.
    (lambda: Linear(1.0, 0.0, -1), ValueError, ["`transition_steps`", "-1"]),
    (lambda: Linear(1.0, 0.0, 3, -2), ValueError, ["`transition_begin`", "-2"]),
    (lambda: Linear(1.0, 0.0, 1e4), TypeError, ["integer", "10000.0", "int(...)"]),
    (lambda: Linear(1.0, 0.0, 2**63), ValueError, [f"at most {largest_steps()}"]),
    (lambda: Linear(1.0, 0.0, jnp.ones(3, jnp.int32)), ValueError, ["filter_vmap"]),
    (lambda: Linear(1.0, 0.0, jnp.array(-1)), ValueError, ["`transition_steps`"]),
    (lambda: Polynomial(1.0, 0.0, 1, -1), ValueError, ["`transition_steps`", "-1"]),
    (lambda: Polynomial(1.0, 0.0, 1, 3, 0.5), TypeError, ["`transition_begin`"]),
    (lambda: CosineDecay(1.0, 0), ValueError, ["CosineDecay", "`decay_steps`", "0"]),
    (lambda: CosineDecay(1.0, -5), ValueError, ["CosineDecay", "`decay_steps`", "-5"]),
    (lambda: CosineDecay(1.0, 10.0), TypeError, ["`decay_steps`", "10.0", "//"]),
    (lambda: CosineDecay(1.0, jnp.array(2.0)), TypeError, ["`decay_steps`"]),
    (lambda: WarmupCosineDecay(0.0, 1.0, -1, 3), ValueError, ["`warmup_steps`", "-1"]),
    (
        lambda: WarmupCosineDecay(0.0, 1.0, 10, 10),
        ValueError,
        [
            "WarmupCosineDecay",
            "`decay_steps`",
            "`warmup_steps`",
            "10",
            "includes the warm-up",
        ],
    ),
    (lambda: WarmupCosineDecay(0.0, 1.0, 10, 5), ValueError, ["`decay_steps`", "5"]),
    # Joins.
    (lambda: Join([], []), ValueError, ["Join", "`schedules`", "empty"]),
    (lambda: Join([ONE], [1]), ValueError, ["one entry fewer", "1 for 1"]),
    (lambda: Join([ONE, TWO], []), ValueError, ["one entry fewer", "0 for 2"]),
    (lambda: Join([ONE, TWO], [1, 2]), ValueError, ["one entry fewer", "2 for 2"]),
    (lambda: Join([ONE, TWO, ONE], [1]), ValueError, ["one entry fewer", "1 for 3"]),
    (lambda: Join([ONE, TWO, ONE], [5, 2]), ValueError, ["ascend", "(5, 2)", "add"]),
    (lambda: Join([ONE, TWO, ONE], [5, 5]), ValueError, ["ascend", "(5, 5)"]),
    (lambda: Join([ONE, TWO], [-1]), ValueError, ["at least 0", "(-1,)"]),
    (lambda: Join([ONE, TWO], [2**63]), ValueError, [f"at most {largest_steps()}"]),
    (
        lambda: Join([ONE, TWO], [2.5]),
        TypeError,
        ["`boundaries`", "(2.5,)", "int(...)"],
    ),
    (lambda: Join([ONE, TWO], [True]), TypeError, ["`boundaries`", "integers"]),
    (lambda: Join([ONE, TWO], NUMBER), TypeError, ["terable"]),
    (lambda: Join([ONE, 0.5], [3]), TypeError, ["`schedules[1]`", "0.5", "Constant"]),
    (lambda: Join([ONE, Constant], [3]), TypeError, ["class Constant", "instance"]),
    # Exponentials.
    (lambda: ExponentialDecay(NAN, 3, 0.5), ValueError, ["`init_value`", "nan"]),
    (lambda: ExponentialDecay(1.0, 0, 0.5), ValueError, ["`transition_steps`", "0"]),
    (lambda: ExponentialDecay(1.0, 3, 0.0), ValueError, ["`decay_rate`", "(0, inf)"]),
    (lambda: ExponentialDecay(1.0, 3, 0.5, -1), ValueError, ["`transition_begin`"]),
    (
        lambda: ExponentialDecay(1.0, 3, 0.5, end_value=INF),
        ValueError,
        ["ExponentialDecay", "`end_value`", "is inf"],
    ),
    (
        lambda: WarmupExponentialDecay(0.0, 1.0, -1, 3, 0.5),
        ValueError,
        ["WarmupExponentialDecay", "`warmup_steps`", "-1"],
    ),
    (
        lambda: WarmupExponentialDecay(0.0, NAN, 1, 3, 0.5),
        ValueError,
        ["`peak_value`"],
    ),
    (lambda: Step(1.0, 0), ValueError, ["Step", "`step_size`", "0"]),
    (lambda: Step(1.0, 2.0), TypeError, ["Step", "`step_size`", "int(...)"]),
    (lambda: Step(1.0, 3, -0.5), ValueError, ["Step", "`gamma`", "-0.5"]),
    # Warm-ups.
    (lambda: WarmupConstant(0.0, 1.0, -1), ValueError, ["`warmup_steps`", "-1"]),
    (lambda: WarmupConstant(0.0, NAN, 1), ValueError, ["`peak_value`", "nan"]),
    (lambda: InverseSquareRoot(0.0, 1.0, 1.5), TypeError, ["`warmup_steps`", "1.5"]),
    (lambda: InverseSquareRoot(0.0, 1.0, 1, 0), ValueError, ["`timescale`", "0"]),
    (
        lambda: WarmupStableDecay(0.0, 1.0, 5, 10, 6),
        ValueError,
        ["`total_steps`", "`warmup_steps`", "`cooldown_steps`", "5 and 6", "10"],
    ),
    (
        lambda: WarmupStableDecay(0.0, 1.0, 1, 9, 2, 0.0, STRING),
        (TypeError, ValueError),
        ["cooldown", "1-sqrt"],
    ),
    # Parts of a run.
    (
        lambda: WarmupDecay(1000, 100.0),
        ValueError,
        ["WarmupDecay", "`warmup`", "float from 0 to 1", "100.0", "no decimal point"],
    ),
    (lambda: WarmupDecay(1000, decay=-1), ValueError, ["`decay`", "-1"]),
    (lambda: WarmupDecay(1000, rewarmup=NAN), ValueError, ["`rewarmup`", "nan"]),
    (lambda: WarmupDecay(1000, cycles=[0.5, 1.5]), ValueError, ["`cycles[1]`", "1.5"]),
    (lambda: WarmupDecay(1000, cycles=0), ValueError, ["`cycles`", "at least 1", "0"]),
    (
        lambda: WarmupDecay(1000, cycles=[500, 0.4]),
        ValueError,
        ["`cycles`", "below `total_steps`", "1000", "[0, 500, 400]", "not the lengths"],
    ),
    (
        lambda: WarmupDecay(1000, 0.1, 450, 0.2, 2),
        ValueError,
        ["`warmup` and `decay`", "100 and 450", "cycle 0", "500"],
    ),
    (
        lambda: WarmupDecay(1000, 0.1, 0.8, 0.25, 2),
        ValueError,
        ["`rewarmup` and `decay`", "125 and 400", "cycle 1", "500"],
    ),
    (lambda: WarmupDecay(100.0), TypeError, ["`total_steps`", "int(...)"]),
    # Pieces.
    (
        lambda: PiecewiseConstant(1.0, {-1: 0.5}),
        ValueError,
        ["PiecewiseConstant", "`boundaries_and_scales`", "at least 0", "(-1,)"],
    ),
    (lambda: PiecewiseConstant(1.0, {1.5: 0.5}), TypeError, ["integers", "(1.5,)"]),
    (
        lambda: PiecewiseConstant(1.0, [(3, 0.5), (3, 0.5)]),
        ValueError,
        ["ascend", "(3, 3)"],
    ),
    (
        lambda: PiecewiseConstant(1.0, {3: -0.5}),
        ValueError,
        ["scales of at least 0", "at 3", "-0.5"],
    ),
    (lambda: PiecewiseConstant(1.0, {3: THREE}), ValueError, ["scales", "at 3"]),
    (
        lambda: PiecewiseInterpolate(STRING, 1.0, {3: 0.5}),
        (TypeError, ValueError),
        ["interpolate_type", "cosine"],
    ),
    (
        lambda: PiecewiseInterpolate("linear", NAN, {3: 0.5}),
        ValueError,
        ["PiecewiseInterpolate", "`init_value`"],
    ),
    (lambda: PiecewiseInterpolate("cosine", 1.0, {3: INF}), ValueError, ["scales"]),
    (lambda: MultiStep(1.0, [5, 2]), ValueError, ["`milestones`", "ascend", "(5, 2)"]),
    (lambda: MultiStep(1.0, [0.5]), TypeError, ["`milestones`", "integers"]),
    (lambda: MultiStep(1.0, [5], -1.0), ValueError, ["MultiStep", "`gamma`", "-1.0"]),
    # Cycles.
    (lambda: CosineOneCycle(0, 1.0), ValueError, ["`transition_steps`", "0"]),
    (lambda: CosineOneCycle(9, 1.0, 30), ValueError, ["`pct_start`", "[0, 1]", "30"]),
    (lambda: CosineOneCycle(9, 1.0, 0.3, 0.0), ValueError, ["`div_factor`", "0.0"]),
    (
        lambda: LinearOneCycle(9, 1.0, final_div_factor=-1.0),
        ValueError,
        ["LinearOneCycle", "`final_div_factor`"],
    ),
    (
        lambda: LinearOneCycle(9, 1.0, 0.5, 0.4),
        ValueError,
        ["`pct_final`", "`pct_start`", "0.5", "0.4"],
    ),
    (lambda: CosineRestarts(1.0, 0), ValueError, ["`decay_steps`", "0"]),
    (lambda: CosineRestarts(1.0, 5, 0), ValueError, ["`t_mult`", "at least 1"]),
    (lambda: CosineRestarts(1.0, 5, 1.5), TypeError, ["`t_mult`", "integer", "1.5"]),
    (lambda: SGDR([]), ValueError, ["SGDR", "`cosine_kwargs`", "empty"]),
    (lambda: SGDR([ONE]), TypeError, ["`cosine_kwargs[0]`", "Constant", "Join"]),
    (lambda: Cyclic(0.0, 1.0, 0), ValueError, ["Cyclic", "`step_size_up`", "0"]),
    (lambda: Cyclic(0.0, 1.0, 1, -1), ValueError, ["`step_size_down`", "-1"]),
    (lambda: Cyclic(0.0, 1.0, gamma=1.5), ValueError, ["`gamma`", "1.5"]),
    (
        lambda: Cyclic(0.0, 1.0, mode=STRING),
        (TypeError, ValueError),
        ["mode", "triangular2"],
    ),
    # Algebra.
    (lambda: Sum([]), ValueError, ["Sum", "`schedules`", "empty"]),
    (lambda: Product([]), ValueError, ["Product", "`schedules`", "empty"]),
    (lambda: Product([ONE, 0.5]), TypeError, ["`schedules[1]`", "Constant(...)"]),
    (lambda: Sum([ONE, Constant]), TypeError, ["class Constant", "instance"]),
    (lambda: ONE * THREE, ValueError, ["Constant", "(3,)"]),
    (lambda: Clipped(STRING), TypeError, ["schedule"]),
    (lambda: ONE.clip(NAN), ValueError, ["Clipped", "`min_value`", "nan"]),
    (lambda: ONE.clip(2.0, 1.0), ValueError, ["`min_value`", "`max_value`", "2.0"]),
    (
        lambda: ((lambda count: THREE) * ONE)(0),
        TypeError,
        ["Product", "`schedules[0]`", "float32"],
    ),
    (
        lambda: Clipped(lambda count: "a", 1.0)(0),
        TypeError,
        ["Clipped", "`schedule`", "'a'"],
    ),
    # Calls.
    (lambda: ONE(1.5), TypeError, ["count", "integer", "1.5", "int(count)"]),
    (lambda: ONE(jnp.array(1.5)), TypeError, ["count", "integer", "1.5"]),
    (lambda: ONE(True), TypeError, ["count", "integer", "True"]),
    (lambda: ONE(jnp.ones(3)), TypeError, ["count", "integer", "astype(jnp.int32)"]),
    (lambda: ONE(np.ones(3)), TypeError, ["count", "integer", "astype(jnp.int32)"]),
    (
        lambda: Join([lambda count: THREE, ONE], [3])(0),
        TypeError,
        ["Join", "`schedules[0]`", "0-d", "float32"],
    ),
    (
        lambda: Join([ONE, lambda count: "a"], [3])(0),
        TypeError,
        ["Join", "`schedules[1]`", "'a'"],
    ),
]


@pytest.mark.parametrize(("call", "error", "words"), WRONG)
def test_message(call, error, words):
    with pytest.raises(error, match=".*".join(map(re.escape, words[:1]))) as info:
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
