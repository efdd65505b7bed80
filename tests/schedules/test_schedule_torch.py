"""The shapes of `torch.optim.lr_scheduler`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqopt import schedules


torch = pytest.importorskip("torch")
lr_scheduler = torch.optim.lr_scheduler
pytestmark = pytest.mark.slow

RATE = 0.5


def learning_rates(make, steps=60):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], RATE)
    scheduler = make(optimizer)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


ONE_CYCLE = {"total_steps": 61, "cycle_momentum": False, "pct_start": 19 / 61}
ONE_CYCLE |= {"div_factor": 10.0, "final_div_factor": 100.0}
TRIANGLES = {"mode": "exp_range", "gamma": 0.95, "cycle_momentum": False}


def in_turn(opt):
    parts = [lr_scheduler.LinearLR(opt, 0.2, 1.0, 10), lr_scheduler.StepLR(opt, 8)]
    return lr_scheduler.SequentialLR(opt, parts, [10])


def chained(opt):
    parts = [lr_scheduler.ConstantLR(opt, 0.25, 4), lr_scheduler.StepLR(opt, 7, 0.5)]
    return lr_scheduler.ChainedScheduler(parts)


PIECES = schedules.PiecewiseConstant(RATE / 4, {4: 4.0})
COSINE = schedules.CosineRestarts(RATE, 5, 2, 0.05)
OF_THREE = schedules.LinearOneCycle(60, RATE, 18.5 / 60, 36.5 / 60, 10.0, 100.0)

# The name in torch, its arguments, and the schedule.
CASES = [
    ("StepLR", (7, 0.3), {}, schedules.Step(RATE, 7, 0.3)),
    (
        "MultiStepLR",
        ([7, 20, 21], 0.3),
        {},
        schedules.MultiStep(RATE, [7, 20, 21], 0.3),
    ),
    ("ConstantLR", (0.25, 4), {}, PIECES),
    ("LinearLR", (0.2, 0.9, 13), {}, schedules.Linear(0.2 * RATE, 0.9 * RATE, 13)),
    ("ExponentialLR", (0.9,), {}, schedules.ExponentialDecay(RATE, 1, 0.9)),
    ("PolynomialLR", (40, 2.0), {}, schedules.Polynomial(RATE, 0.0, 2.0, 40)),
    # Up to its end: there it turns back.
    ("CosineAnnealingLR", (60, 0.05), {}, schedules.CosineDecay(RATE, 60, alpha=0.1)),
    ("CosineAnnealingWarmRestarts", (5, 2, 0.05), {}, COSINE),
    (
        "CyclicLR",
        (0.1, RATE, 8, 5),
        TRIANGLES,
        schedules.Cyclic(0.1, RATE, 8, 5, "exp_range", 0.95),
    ),
    # A step faster, and from step to step, not along with the steps: see the docstring.
    (
        "OneCycleLR",
        (RATE,),
        ONE_CYCLE | {"anneal_strategy": "cos"},
        schedules.CosineOneCycle(60, RATE, 18.5 / 60, 10.0, 100.0),
    ),
    (
        "OneCycleLR",
        (RATE,),
        ONE_CYCLE | {"anneal_strategy": "linear", "three_phase": True},
        OF_THREE,
    ),
    (
        "LambdaLR",
        (lambda t: 1 / (1 + t),),
        {},
        lambda count: RATE / (1 + jnp.asarray(count, jnp.float32)),
    ),
]


@pytest.mark.parametrize("name, args, kwargs, ours", CASES, ids=[x[0] for x in CASES])
@pytest.mark.filterwarnings("ignore:The epoch parameter:UserWarning")
def test_learning_rates(name, args, kwargs, ours):
    assert_same(ours, lambda opt: getattr(lr_scheduler, name)(opt, *args, **kwargs))


@pytest.mark.filterwarnings("ignore:The epoch parameter:UserWarning")
def test_several():
    assert_same(PIECES * schedules.Step(1.0, 7, 0.5), chained)
    parts = [schedules.Linear(0.1, RATE, 10), schedules.Step(RATE, 8)]
    assert_same(schedules.Join(parts, [10]), in_turn)


def assert_same(ours, make):
    values = jax.vmap(ours)(jnp.arange(60))
    np.testing.assert_allclose(values, learning_rates(make), rtol=1e-5, atol=1e-7)
