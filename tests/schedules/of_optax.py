"""The rows of schedules that Optax has, too."""

import optax

from eqopt import schedules

from .case import Case


def row(name, horizon, *args, **kwargs):
    """The schedule of both libraries by the same arguments."""
    theirs = _NAMES[name](*args, **kwargs)
    return Case(getattr(schedules, name)(*args, **kwargs), theirs, horizon)


_NAMES = {
    "Constant": optax.constant_schedule,
    "CosineDecay": optax.cosine_decay_schedule,
    "CosineOneCycle": optax.cosine_onecycle_schedule,
    "ExponentialDecay": optax.exponential_decay,
    "Linear": optax.linear_schedule,
    "LinearOneCycle": optax.linear_onecycle_schedule,
    "PiecewiseConstant": optax.piecewise_constant_schedule,
    "PiecewiseInterpolate": optax.piecewise_interpolate_schedule,
    "Polynomial": optax.polynomial_schedule,
    "SGDR": optax.sgdr_schedule,
    "WarmupConstant": optax.warmup_constant_schedule,
    "WarmupCosineDecay": optax.warmup_cosine_decay_schedule,
    "WarmupExponentialDecay": optax.warmup_exponential_decay_schedule,
}
_SCALES = {20: 0.3, 5: 0.5, 40: 2.0}  # not sorted
_FIELDS = (
    *("init_value", "peak_value", "warmup_steps", "decay_steps"),
    *("end_value", "exponent"),
)
_CYCLES = [
    dict(zip(_FIELDS, values, strict=False))
    for values in ((0.1, 1.0, 5, 20), (0.0, 0.5, 0, 7), (0.2, 0.7, 3, 31, 0.05, 2.0))
]

OF_OPTAX = {
    "constant": row("Constant", 1, 0.3),
    "linear_up": row("Linear", 50, 0.0, 1e-3, 50),
    "linear_later": row("Linear", 40, 0.7, -0.1, 33, transition_begin=7),
    "linear_huge": row("Linear", 2**31 - 2000, 1.0, 0.0, 2**31 - 1),
    "polynomial_square": row("Polynomial", 105, 1.0, 0.01, 2, 100, 5),
    "polynomial_root": row("Polynomial", 47, 0.2, 0.9, 0.5, 47),  # upwards
    "polynomial_flat": row("Polynomial", 10, 1.0, 0.5, 0, 10),
    "cosine": row("CosineDecay", 100, 1e-2, 100),
    "cosine_alpha": row("CosineDecay", 77, 3.0, 77, alpha=0.1, exponent=2.5),
    "cosine_root": row("CosineDecay", 64, 1.0, 64, exponent=0.5),
    "cosine_short": row("CosineDecay", 1, 1.0, 1, 0.3),
    "cosine_long": row("CosineDecay", 1_000_000, 1.0, 1_000_000),
    "warmup": row("WarmupCosineDecay", 100, 0.0, 1e-3, 20, 100),
    "warmup_full": row(
        "WarmupCosineDecay", 61, 0.1, 0.9, 7, 61, end_value=0.02, exponent=1.7
    ),
    "warmup_none": row("WarmupCosineDecay", 40, 0.5, 1.0, 0, 40, 0.25),
    "warmup_short": row("WarmupCosineDecay", 2, 0.0, 1.0, 1, 2, 0.1),
    "warmup_constant": row("WarmupConstant", 20, 0.1, 0.7, 20),
    "exponential": row("ExponentialDecay", 2000, 0.5, 20, 0.6),
    "exponential_stairs": row(
        "ExponentialDecay", 400, 0.5, 7, 0.3, 5, staircase=True, end_value=0.001
    ),
    "exponential_growth": row(
        "ExponentialDecay", 110, 0.01, 10, 1.5, transition_begin=3, end_value=0.4
    ),
    "exponential_flat": row("ExponentialDecay", 10, 0.01, 10, 1.0),
    # Bounded from the first step on.
    "exponential_bounded": row("ExponentialDecay", 10, 0.5, 10, 0.5, end_value=0.7),
    "warmup_exponential": row("WarmupExponentialDecay", 1000, 0.0, 0.5, 20, 30, 0.5),
    "warmup_exponential_full": row(
        "WarmupExponentialDecay", 300, 0.1, 0.5, 7, 13, 0.4, 4, True, 0.01
    ),
    "piecewise_constant": row("PiecewiseConstant", 40, 0.8, _SCALES),
    "piecewise_constant_zero": row("PiecewiseConstant", 20, 0.8, {0: 0.5, 20: 0.0}),
    "piecewise_constant_none": row("PiecewiseConstant", 1, 0.8),
    "piecewise_linear": row("PiecewiseInterpolate", 40, "linear", 0.8, _SCALES),
    "piecewise_cosine": row("PiecewiseInterpolate", 40, "cosine", 0.8, _SCALES),
    "piecewise_at_zero": row(
        "PiecewiseInterpolate", 9, "cosine", 0.8, {0: 0.5, 1: 3.0, 9: 0.0}
    ),
    "linear_one_cycle": row("LinearOneCycle", 100, 100, 0.5),
    "linear_one_cycle_full": row("LinearOneCycle", 57, 57, 2.0, 0.25, 0.5, 10.0, 50.0),
    "linear_one_cycle_short": row("LinearOneCycle", 2, 2, 0.5),
    "cosine_one_cycle": row("CosineOneCycle", 100, 100, 0.5),
    "cosine_one_cycle_full": row("CosineOneCycle", 61, 61, 2.0, 0.25, 10.0, 50.0),
    "cosine_one_cycle_short": row("CosineOneCycle", 1, 1, 0.5),
    "sgdr": row("SGDR", 58, _CYCLES),
}
