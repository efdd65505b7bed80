"""The rows of the other schedules that Optax has, too."""

import optax

from eqopt import schedules

from .case import Case


def row(name, horizon, *args, **kwargs):
    """The schedule of both libraries by the same arguments."""
    theirs = _NAMES[name](*args, **kwargs)
    return Case(getattr(schedules, name)(*args, **kwargs), theirs, horizon)


_NAMES = {
    "CosineOneCycle": optax.cosine_onecycle_schedule,
    "ExponentialDecay": optax.exponential_decay,
    "LinearOneCycle": optax.linear_onecycle_schedule,
    "PiecewiseConstant": optax.piecewise_constant_schedule,
    "PiecewiseInterpolate": optax.piecewise_interpolate_schedule,
    "SGDR": optax.sgdr_schedule,
    "WarmupConstant": optax.warmup_constant_schedule,
    "WarmupExponentialDecay": optax.warmup_exponential_decay_schedule,
}
_SCALES = {20: 0.3, 5: 0.5, 40: 2.0}  # not sorted
_CYCLES = (
    {"init_value": 0.1, "peak_value": 1.0, "warmup_steps": 5, "decay_steps": 20},
    {"init_value": 0.0, "peak_value": 0.5, "warmup_steps": 0, "decay_steps": 7},
    {
        "init_value": 0.2,
        "peak_value": 0.7,
        "warmup_steps": 3,
        "decay_steps": 31,
        "end_value": 0.05,
        "exponent": 2.0,
    },
)

REST_OF_OPTAX = {
    "warmup_constant": row("WarmupConstant", 20, 0.1, 0.7, 20),
    "exponential": row("ExponentialDecay", 2000, 0.5, 20, 0.6),
    "exponential_stairs": row(
        "ExponentialDecay", 400, 0.5, 7, 0.3, 5, staircase=True, end_value=0.001
    ),
    "exponential_later": row(
        "ExponentialDecay", 900, 2.0, 50, 0.5, transition_begin=7, end_value=0.002
    ),
    "exponential_growth": row(
        "ExponentialDecay", 110, 0.01, 10, 1.5, transition_begin=3, end_value=0.4
    ),
    "exponential_flat": row("ExponentialDecay", 10, 0.01, 10, 1.0),
    # Bounded from the first step on.
    "exponential_bounded": row("ExponentialDecay", 10, 0.5, 10, 0.5, end_value=0.7),
    "warmup_exponential": row("WarmupExponentialDecay", 1000, 0.0, 0.5, 20, 30, 0.5),
    "warmup_exponential_full": row(
        "WarmupExponentialDecay",
        300,
        init_value=0.1,
        peak_value=0.5,
        warmup_steps=7,
        transition_steps=13,
        decay_rate=0.4,
        transition_begin=4,
        staircase=True,
        end_value=0.01,
    ),
    "warmup_exponential_none": row(
        "WarmupExponentialDecay", 900, 0.1, 0.5, 0, 20, 0.5, end_value=0.001
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
    "linear_one_cycle_full": row(
        "LinearOneCycle",
        57,
        transition_steps=57,
        peak_value=2.0,
        pct_start=0.25,
        pct_final=0.5,
        div_factor=10.0,
        final_div_factor=50.0,
    ),
    "linear_one_cycle_short": row("LinearOneCycle", 2, 2, 0.5),
    "cosine_one_cycle": row("CosineOneCycle", 100, 100, 0.5),
    "cosine_one_cycle_full": row(
        "CosineOneCycle",
        61,
        transition_steps=61,
        peak_value=2.0,
        pct_start=0.25,
        div_factor=10.0,
        final_div_factor=50.0,
    ),
    "cosine_one_cycle_short": row("CosineOneCycle", 1, 1, 0.5),
    "sgdr": row("SGDR", 58, _CYCLES),
    "sgdr_one": row("SGDR", 20, _CYCLES[:1]),
}
