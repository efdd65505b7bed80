"""The rows of schedules that Optax does not have, with their formulas in Python."""

from math import cos, pi, sqrt

from eqopt.schedules import (
    CosineDecay,
    CosineRestarts,
    Cyclic,
    InverseSquareRoot,
    Linear,
    MultiStep,
    Step,
    WarmupDecay,
    WarmupStableDecay,
)

from .case import Case


def stable(shape):
    def value(count):
        t = int(count)
        if t < 7:
            return 0.1 + 0.9 * t / 7
        x = min(max((t - 40) / 21, 0), 1)
        return 0.05 + 0.95 * shape(x)

    return value


def cycles(starts, end, warmups, decays, shape):
    """A peak of 0.9, with an end value of 0.09."""

    def value(count):
        t = min(int(count), end)
        i = max(i for i, start in enumerate(starts) if start <= t)
        start, stop = starts[i], [*starts, end][i + 1]
        t -= start
        if t < warmups[i]:
            low = 0.09 if i else 0.0
            return low + (0.9 - low) * t / warmups[i]
        x = max(t - (stop - start - decays[i]), 0) / decays[i]
        return 0.09 + 0.81 * shape(min(x, 1))

    return value


def inverse_square_root(warmup, timescale):
    def value(count):
        t = int(count)
        if t < warmup:
            return 0.1 + 0.6 * t / warmup
        return 0.7 * sqrt(timescale / (timescale + t - warmup))

    return value


def triangles(up, down, height):
    def value(count):
        t = int(count)
        cycle, u = divmod(t, up + down)
        part = u / up if u <= up else (up + down - u) / down
        return 0.1 + 0.8 * part * height(cycle, t)

    return value


def restarts(first, factor):
    def value(count):
        elapsed, length = int(count), first
        if factor == 1:
            elapsed %= first
        while elapsed >= length:
            elapsed, length = elapsed - length, length * factor
        return 0.05 + 0.85 * (1 + cos(pi * elapsed / length)) / 2

    return value


def ramp(count):
    return min(int(count), 20) / 20


def wave(count):
    return (1 + cos(pi * min(int(count), 50) / 50)) / 2


_RAMP = Linear(0.0, 1.0, 20)
_WAVE = CosineDecay(1.0, 50)
_STABLE = 0.1, 1.0, 7, 61, 21, 0.05
_CYCLIC = 0.1, 0.9, 13, 8


def endless(ours, reference, horizon):
    """A schedule that still changes after its horizon."""
    return Case(ours, reference, horizon, settles=False)


BEYOND = {
    "stable_linear": Case(WarmupStableDecay(*_STABLE), stable(lambda x: 1 - x), 61),
    "stable_sqrt": Case(
        WarmupStableDecay(*_STABLE, cooldown="1-sqrt"),
        stable(lambda x: 1 - sqrt(x)),
        61,
    ),
    "stable_cosine": Case(
        WarmupStableDecay(*_STABLE, "cosine"),
        stable(lambda x: (1 + cos(pi * x)) / 2),
        61,
    ),
    "stable_jump": Case(  # neither warm-up nor cool-down
        WarmupStableDecay(0.1, 1.0, 0, 20, 0, 0.05),
        lambda count: 1.0 if count < 20 else 0.05,
        20,
    ),
    "parts_of_the_run": Case(  # 6 and 12 of 60 steps
        WarmupDecay(60, 0.1, 0.2, peak_value=0.9, alpha=0.1, shape="linear"),
        cycles([0], 60, [6], [12], lambda x: 1 - x),
        60,
    ),
    "cycles_with_warmups": Case(  # of 21, 21 and 20 steps
        WarmupDecay(62, 7, None, 0.2, 3, peak_value=0.9, alpha=0.1),
        cycles(
            [0, 21, 41], 62, [7, 4, 4], [14, 16, 17], lambda x: (1 + cos(pi * x)) / 2
        ),
        62,
    ),
    "cycles_at_steps": Case(
        WarmupDecay(61, 6, 5, 0, [20, 0.5], peak_value=0.9, alpha=0.1, shape="1-sqrt"),
        cycles([0, 20, 31], 61, [6, 0, 0], [5, 5, 5], lambda x: 1 - sqrt(x)),
        61,
    ),
    "inverse_square_root": endless(
        InverseSquareRoot(0.1, 0.7, 20), inverse_square_root(20, 20), 500
    ),
    "inverse_square_root_scaled": endless(
        InverseSquareRoot(0.1, 0.7, 7, timescale=100), inverse_square_root(7, 100), 500
    ),
    "inverse_square_root_at_once": endless(
        InverseSquareRoot(0.1, 0.7, 0), inverse_square_root(0, 1), 500
    ),
    "triangular": endless(Cyclic(*_CYCLIC), triangles(13, 8, lambda cycle, t: 1), 100),
    "triangular2": endless(
        Cyclic(*_CYCLIC, mode="triangular2"),
        triangles(13, 8, lambda cycle, t: 2.0**-cycle),
        100,
    ),
    "triangular_exp": endless(
        Cyclic(*_CYCLIC, "exp_range", 0.97),
        triangles(13, 8, lambda cycle, t: 0.97**t),
        100,
    ),
    "triangular_even": endless(
        Cyclic(0.1, 0.9, 6), triangles(6, 6, lambda cycle, t: 1), 50
    ),
    "saw_teeth": endless(
        Cyclic(0.1, 0.9, 6, 0), triangles(6, 0, lambda cycle, t: 1), 50
    ),
    "restarts": endless(CosineRestarts(0.9, 7, end_value=0.05), restarts(7, 1), 50),
    "restarts_longer": endless(
        CosineRestarts(0.9, 5, 2, end_value=0.05), restarts(5, 2), 75
    ),
    "restarts_thrice": endless(CosineRestarts(0.9, 1, 3, 0.05), restarts(1, 3), 121),
    "step": Case(Step(0.5, 7, 0.3), lambda count: 0.5 * 0.3 ** (int(count) // 7), 500),
    "multi_step": Case(
        MultiStep(0.5, [5, 7, 20], gamma=0.3),
        lambda count: 0.5 * 0.3 ** sum(count >= m for m in (5, 7, 20)),
        20,
    ),
    "multi_step_zero": Case(
        MultiStep(0.5, (3, 20), 0.0), lambda count: 0.5 * (count < 3), 20
    ),
    "product": Case(_RAMP * _WAVE * 2, lambda t: 2 * ramp(t) * wave(t), 50),
    "sum": Case(0.25 + _RAMP - _WAVE / 2, lambda t: 0.25 + ramp(t) - wave(t) / 2, 50),
    "clipped": Case(
        (2 * _WAVE).clip(0.3, 1.5), lambda t: min(max(2 * wave(t), 0.3), 1.5), 50
    ),
}
