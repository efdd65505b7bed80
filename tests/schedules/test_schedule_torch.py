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


def triangles(mode, gamma=1.0):
    return lambda opt: lr_scheduler.CyclicLR(
        opt, 0.1, RATE, 8, 5, mode=mode, gamma=gamma, cycle_momentum=False
    )


def one_cycle(start, strategy, three_phase=False):
    return lambda opt: lr_scheduler.OneCycleLR(
        opt,
        RATE,
        total_steps=61,
        pct_start=start,
        anneal_strategy=strategy,
        cycle_momentum=False,
        div_factor=10.0,
        final_div_factor=100.0,
        three_phase=three_phase,
    )


def in_turn(opt):
    parts = [lr_scheduler.LinearLR(opt, 0.2, 1.0, 10), lr_scheduler.StepLR(opt, 8)]
    return lr_scheduler.SequentialLR(opt, parts, [10])


def chained(opt):
    parts = [lr_scheduler.ConstantLR(opt, 0.25, 4), lr_scheduler.StepLR(opt, 7, 0.5)]
    return lr_scheduler.ChainedScheduler(parts)


CASES = {
    "StepLR": (
        lambda opt: lr_scheduler.StepLR(opt, 7, 0.3),
        schedules.Step(RATE, 7, 0.3),
    ),
    "MultiStepLR": (
        lambda opt: lr_scheduler.MultiStepLR(opt, [7, 20, 21], 0.3),
        schedules.MultiStep(RATE, [7, 20, 21], 0.3),
    ),
    "ConstantLR": (
        lambda opt: lr_scheduler.ConstantLR(opt, 0.25, 9),
        schedules.PiecewiseConstant(RATE / 4, {9: 4.0}),
    ),
    "LinearLR": (
        lambda opt: lr_scheduler.LinearLR(opt, 0.2, 0.9, 13),
        schedules.Linear(0.2 * RATE, 0.9 * RATE, 13),
    ),
    "ExponentialLR": (
        lambda opt: lr_scheduler.ExponentialLR(opt, 0.9),
        schedules.ExponentialDecay(RATE, 1, 0.9),
    ),
    "PolynomialLR": (
        lambda opt: lr_scheduler.PolynomialLR(opt, 40, 2.0),
        schedules.Polynomial(RATE, 0.0, 2.0, 40),
    ),
    "CosineAnnealingLR": (  # up to its end: there it turns back
        lambda opt: lr_scheduler.CosineAnnealingLR(opt, 60, 0.05),
        schedules.CosineDecay(RATE, 60, alpha=0.1),
    ),
    "CosineAnnealingWarmRestarts": (
        lambda opt: lr_scheduler.CosineAnnealingWarmRestarts(opt, 9, 1, 0.05),
        schedules.CosineRestarts(RATE, 9, end_value=0.05),
    ),
    "CosineAnnealingWarmRestarts, longer": (
        lambda opt: lr_scheduler.CosineAnnealingWarmRestarts(opt, 5, 2, 0.05),
        schedules.CosineRestarts(RATE, 5, 2, 0.05),
    ),
    "CosineAnnealingWarmRestarts, much longer": (
        lambda opt: lr_scheduler.CosineAnnealingWarmRestarts(opt, 2, 4),
        schedules.CosineRestarts(RATE, 2, 4),
    ),
    "CyclicLR": (triangles("triangular"), schedules.Cyclic(0.1, RATE, 8, 5)),
    "CyclicLR, halved": (
        triangles("triangular2"),
        schedules.Cyclic(0.1, RATE, 8, 5, "triangular2"),
    ),
    "CyclicLR, exponential": (
        triangles("exp_range", 0.95),
        schedules.Cyclic(0.1, RATE, 8, 5, "exp_range", 0.95),
    ),
    # A step faster, and from step to step, not along with the steps: see the docstring.
    "OneCycleLR": (
        one_cycle(19 / 61, "cos"),
        schedules.CosineOneCycle(60, RATE, 18.5 / 60, 10.0, 100.0),
    ),
    "OneCycleLR, three phases": (
        one_cycle(19 / 61, "linear", three_phase=True),
        schedules.LinearOneCycle(60, RATE, 18.5 / 60, 36.5 / 60, 10.0, 100.0),
    ),
    "LambdaLR": (
        lambda opt: lr_scheduler.LambdaLR(opt, lambda t: 1 / (1 + t)),
        lambda count: RATE / (1 + jnp.asarray(count, jnp.float32)),
    ),
    "ChainedScheduler": (
        chained,
        schedules.PiecewiseConstant(RATE / 4, {4: 4.0}) * schedules.Step(1.0, 7, 0.5),
    ),
    "SequentialLR": (
        in_turn,
        schedules.Join(
            [schedules.Linear(0.1, RATE, 10), schedules.Step(RATE, 8)], [10]
        ),
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore:The epoch parameter:UserWarning")
def test_learning_rates(name):
    theirs, ours = CASES[name]
    values = jax.vmap(ours)(jnp.arange(60))
    np.testing.assert_allclose(values, learning_rates(theirs), rtol=1e-5, atol=1e-7)
