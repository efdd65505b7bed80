"""Long runs in miniature: full counters, a million steps, constant memory."""

import gc
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt

from .registry import TELLING, law
from .subjects import arrays, grads_of, params_of, step


pytestmark = pytest.mark.slow


LAST = np.iinfo(np.int32).max


#
# The maximum of the counters
#


def counters(tree):
    """All counters with their key paths: 0-d int32 arrays."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {
        jax.tree_util.keystr(path): x
        for path, x in leaves
        if eqx.is_array(x) and x.dtype == jnp.int32 and x.ndim == 0
    }


def late(x):
    """A counter two steps before it would overflow."""
    is_counter = eqx.is_array(x) and x.dtype == jnp.int32 and x.ndim == 0
    return jnp.asarray(LAST - 1, jnp.int32) if is_counter else x


@law(names=TELLING)
def test_counters_stay_at_their_maximum(row):
    """Counters stay, start again or count down; none is negative. Steps are finite."""
    opt, params = row(), params_of()
    params, state = step(opt, grads_of(params, 0), opt.init(params), params)
    state = jax.tree.map(late, state)
    for i in range(1, 4):
        params, state = step(opt, grads_of(params, i), state, params)
        for path, count in counters(state).items():
            assert 0 <= count < 100 or count >= LAST - 4, (path, count)
    assert all(bool(jnp.all(jnp.isfinite(x))) for x in arrays((params, state)))


@pytest.mark.parametrize("first", [LAST, LAST - 1])
def test_steps_after_a_counter_reaches_its_maximum(first):
    """The schedule keeps its last value, and the bias correction has no effect."""
    schedule = eqopt.schedules.Linear(1.0, 0.5, LAST)
    opt, params = eqopt.Adam(schedule), jnp.ones(3)
    state, grads = opt.init(params), jnp.full(3, 2.0)
    where = lambda s: (s[0].count, s[1].count, s[0].mu, s[0].nu)
    count = jnp.asarray(first, jnp.int32)
    state = eqx.tree_at(where, state, (count, count, grads, grads**2))
    for _ in range(3):
        params, state = step(opt, grads, state, params)
    np.testing.assert_allclose(params, 1 - 3 * 0.5, rtol=1e-6)
    assert eqopt.tree.get(state, "learning_rate") == 0.5


#
# A million steps
#

MILLION = 10**6


class Run(NamedTuple):
    """An optimizer with sums or means, the gradients it gets, and the expected result.

    - `grad`: the gradient as a function of the step and the parameter.
    - `expected`: values in the state after a million steps, by the name of their field;
        `evaluated` is the parameter to evaluate with.
    - `rtol`: the tolerance for values. Counters are always exact. A mean in float32
        stops when its next change is less than half of its last digit: with a decay of
        0.999, that is 500 digits, or 3e-5, short of its limit.
    """

    opt: Any
    grad: Callable[[Any, Any], Any]
    expected: dict[str, float]
    rtol: float = 0.0


def to_and_fro(i, p):
    """The parameter goes from 1 to 0.5 and back, without rounding."""
    return jnp.where(i % 2 == 0, 1.0, -1.0)


def nan_sometimes(i, p):
    return jnp.where(i % 1000 == 999, jnp.nan, to_and_fro(i, p))


SGD = eqopt.SGD(0.5)
FALLING = eqopt.schedules.Linear(1.0, 0.0, 2 * MILLION)
AVERAGES = {"mini_step": MILLION % 3, "gradient_step": MILLION // 3, "mu": 2, "nu": 4}
SKIPPED = {"total_skipped": 1000, "norm_count": MILLION - 1000, "value_count": MILLION}
RUNS = {
    "Adam": Run(
        eqopt.Adam(FALLING), to_and_fro, {"nu": 1.0, "learning_rate": 0.5}, 4e-5
    ),
    "MultiSteps": Run(
        eqopt.MultiSteps(eqopt.Adam(FALLING), 3),
        lambda i, p: 1.0 + (i % 3).astype(jnp.float32),
        AVERAGES,
        4e-5,
    ),
    "ParamEMA": Run(
        eqopt.ParamEMA(SGD, 0.999),
        to_and_fro,
        {"weight_sum": 1.0, "evaluated": 0.75},
        1e-3,
    ),
    "SkipStep": Run(eqopt.SkipStep(SGD, eqopt.SigmaRule(8)), nan_sometimes, SKIPPED),
    "SWA": Run(
        eqopt.SWA(SGD, 1, 1),
        to_and_fro,
        {"n_averaged": MILLION, "evaluated": 0.75},
        1e-5,
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_million_steps(name):
    """No sum and no mean drifts."""
    opt, grad, expected, rtol = RUNS[name]

    @jax.jit
    def run():
        def one(carry, i):
            p, state = carry
            return opt.step(grad(i, p), state, p, value=jnp.ones(())), None

        start = jnp.ones(())
        steps = jnp.arange(MILLION, dtype=jnp.int32)
        (p, state), _ = jax.lax.scan(one, (start, opt.init(start)), steps)
        return state, opt.eval_params(state, p)

    state, evaluated = run()
    for key, value in expected.items():
        found = evaluated if key == "evaluated" else eqopt.tree.get(state, key)
        tolerance = 0 if jnp.issubdtype(found.dtype, jnp.integer) else rtol
        np.testing.assert_allclose(found, value, rtol=tolerance, err_msg=key)
    assert all(bool(jnp.all(jnp.isfinite(x))) for x in arrays((evaluated, state)))


#
# Four thousand steps of a loop in Python
#


def test_a_long_loop_takes_no_more_memory():
    """No arrays remain, the process does not grow, and nothing compiles again."""
    opt = eqopt.MultiSteps(
        eqopt.ParamEMA(eqopt.ApplyIfFinite(eqopt.AdamW(FALLING), 5), 0.99), 2
    )
    model = eqx.nn.MLP(4, 1, 32, 2, key=jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (16, 4))

    @eqx.filter_jit(donate="all-except-first")
    @eqx.debug.assert_max_traces(max_traces=1)
    def train_step(x, model, state):
        loss, grads = eqx.filter_value_and_grad(
            lambda model: jnp.mean((jax.vmap(model)(x) - 1) ** 2)
        )(model)
        model, state = opt.step(grads, state, model, value=loss)
        return model, state, loss

    def taken():
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return len(jax.live_arrays()), pages * resource.getpagesize()

    state, before, loss = opt.init(model), (0, 0), jnp.nan
    for i in range(4_000):
        model, state, loss = train_step(x, model, state)
        if i == 500:
            before = taken()
    after = taken()
    assert after[0] == before[0]
    # An array of this model has 4 kB: one for every ten steps would take 1.4 MB.
    assert after[1] - before[1] < 1e6
    assert state.gradient_step == 2000 and jnp.isfinite(loss)
