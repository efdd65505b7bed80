"""Wrong arguments: each message names the class, the argument, and the way out."""

import re
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from eqopt.schedules import (
    Constant,
    CosineDecay,
    Join,
    Linear,
    Polynomial,
    WarmupCosineDecay,
)


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
    (lambda: Linear(0.0, INF, 3), ValueError, ["`end_value`", "finite", "inf"]),
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
    (lambda: Linear(1.0, 0.0, 2**31), ValueError, ["2147483647", "Constant"]),
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
        ["WarmupCosineDecay", "`decay_steps`", "`warmup_steps`", "10", "warm-up too"],
    ),
    (lambda: WarmupCosineDecay(0.0, 1.0, 10, 5), ValueError, ["`decay_steps`", "5"]),
    # Joins.
    (lambda: Join([ONE], []), ValueError, ["Join", "`boundaries`", "empty"]),
    (lambda: Join([], []), ValueError, ["Join", "`boundaries`", "empty"]),
    (lambda: Join([ONE, TWO], [1, 2]), ValueError, ["one fewer", "2 for 2"]),
    (lambda: Join([ONE, TWO, ONE], [1]), ValueError, ["one fewer", "1 for 3"]),
    (lambda: Join([ONE, TWO, ONE], [5, 2]), ValueError, ["ascend", "(5, 2)", "add"]),
    (lambda: Join([ONE, TWO, ONE], [5, 5]), ValueError, ["ascend", "(5, 5)"]),
    (lambda: Join([ONE, TWO], [-1]), ValueError, ["at least 0", "(-1,)"]),
    (lambda: Join([ONE, TWO], [2**31]), ValueError, ["at most 2147483647"]),
    (
        lambda: Join([ONE, TWO], [2.5]),
        TypeError,
        ["`boundaries`", "(2.5,)", "int(...)"],
    ),
    (lambda: Join([ONE, TWO], [True]), TypeError, ["`boundaries`", "integers"]),
    (lambda: Join([ONE, TWO], NUMBER), TypeError, ["terable"]),
    (lambda: Join([ONE, 0.5], [3]), TypeError, ["`schedules[1]`", "0.5", "Constant"]),
    (lambda: Join([ONE, Constant], [3]), TypeError, ["class Constant", "instance"]),
    # Calls.
    (lambda: ONE(1.5), TypeError, ["count", "integer", "1.5", "int(count)"]),
    (lambda: ONE(jnp.array(1.5)), TypeError, ["count", "integer", "1.5"]),
    (lambda: ONE(True), TypeError, ["count", "integer", "True"]),
    (lambda: ONE(jnp.arange(3)), ValueError, ["(3,)", "jax.vmap(schedule)(counts)"]),
    (lambda: ONE(np.arange(3)), ValueError, ["(3,)", "jax.vmap(schedule)(counts)"]),
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
