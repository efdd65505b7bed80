"""A schedule that looks at the loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt
from eqopt.schedules import ReduceOnPlateau


LOSSES = [3.0, *3 * [2.0], *5 * [1.9], 2.5, 2.5, *5 * [1.0]]


def rates(schedule, losses=LOSSES):
    """The values in the steps after each loss."""

    def step(state, loss):
        state = schedule.update(state, value=loss)
        return state, schedule(state)

    return jax.lax.scan(step, schedule.init(), jnp.asarray(losses))[1]


@pytest.mark.slow
@pytest.mark.parametrize("cooldown", [0, 2])
@pytest.mark.parametrize("threshold", [1e-4, 0.1])
def test_as_in_torch(cooldown, threshold):
    torch = pytest.importorskip("torch")
    opt = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.5)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(
        opt, factor=0.3, patience=2, threshold=threshold, cooldown=cooldown
    )
    expected = []
    for loss in LOSSES:
        theirs.step(loss)
        expected.append(opt.param_groups[0]["lr"])
    ours = ReduceOnPlateau(0.5, 0.3, 3, threshold, cooldown=cooldown)
    np.testing.assert_allclose(rates(ours), expected, rtol=1e-6)


@pytest.mark.parametrize(
    "rule",
    [
        {"patience": 2},
        {"factor": 0.5, "patience": 1, "rtol": 0.0, "atol": 0.3, "cooldown": 1},
        {"patience": 1, "accumulation_size": 3, "min_scale": 0.05},
    ],
)
@pytest.mark.costly
def test_same_rule_as_the_transformation(rule):
    """Scaling the learning rate is scaling the update, in the same step."""
    by_rate = eqopt.Scheduled(eqopt.SGD(ReduceOnPlateau(0.1, **rule)))
    by_update = eqopt.Chain(eqopt.SGD(0.1), eqopt.ReduceLROnPlateau(**rule))
    p = q = jnp.ones(3)
    state, their_state = by_rate.init(p), by_update.init(q)
    for loss in LOSSES:
        p, state = by_rate.step(p, state, p, value=jnp.asarray(loss))
        q, their_state = by_update.step(q, their_state, q, value=jnp.asarray(loss))
        np.testing.assert_allclose(p, q, rtol=1e-6)
    scale = eqopt.tree.get(state, "ReduceOnPlateauState").scale
    assert scale == eqopt.tree.get(their_state, "ReduceLROnPlateauState").scale < 1


def test_dtypes(x64):
    with x64():
        schedule = ReduceOnPlateau(0.1, patience=1)
        state = schedule.update(schedule.init(), value=jnp.asarray(1.0, jnp.float64))
        for x in (schedule(state), state.scale, state.best_value):
            assert x.dtype == jnp.float64
    for dtype in (jnp.bfloat16, jnp.float16):
        state = schedule.update(schedule.init(), value=jnp.ones((), dtype))
        assert state.avg_value.dtype == jnp.float32


def test_rules_of_any_dtype(x64):
    rule = {"factor": 0.5, "rtol": 0.25, "atol": 0.0, "min_scale": 0.125}
    with x64():
        rule = {name: jnp.bfloat16(x) for name, x in rule.items()}
        schedule = ReduceOnPlateau(0.1, patience=np.int64(1), **rule)
        state = schedule.init()
        for _ in range(2):
            state = schedule.update(state, value=1.0)
        assert schedule(state).dtype == jnp.float64
        np.testing.assert_allclose(schedule(state), 0.05, rtol=1e-6)


def test_a_loss_with_more_digits_than_the_state(x64):
    """It is rounded before it is compared: the same loss again is no improvement."""
    opt = eqopt.ReduceLROnPlateau(0.5, patience=1, rtol=0.0)
    params = jnp.ones(2, jnp.float32)
    with x64():
        state, value = opt.init(params), jnp.asarray(0.1, jnp.float64)
        for _ in range(2):
            _, state = opt.update(params, state, params, value=value)
        assert state.scale == 0.5
