"""Averages of the parameters."""

import jax.numpy as jnp

import eqopt

from ..row import around, halve, row


ROWS = [
    *around(eqopt.ParamEMA, decay=0.9),
    *around(
        eqopt.SWA,
        exempt={
            "other_model": "where the average has `None`, the parameter has no average"
        },
        start=2,
        period=2,
    ),
    *around(eqopt.DiLoCo, axis_name=None, sync_every=2),
    *around(eqopt.GPA, mu_x=0.5, mu_y=0.8),
    *around(eqopt.EMANesterov, beta=0.5, decay=0.8),
    *around(eqopt.OuterNesterov, period=2, learning_rate=0.5, momentum=0.8),
    *around(eqopt.SODA),
    row(
        lambda **data: eqopt.DiLoCo(
            eqopt.Adam(0.01), None, 4, fragments=2, delay=1, **data
        ),
        name="DiLoCo(streaming)",
        exempt={
            "test_declared": "one outer step has been taken, and all of it is upwards",
            "test_init_of_the_whole": "the arrays of the whole are divided into other "
            "fragments",
        },
        local_share=0.5,
    ),
    row(
        lambda **data: eqopt.GPA(eqopt.Adam(0.01), sees="y", **data),
        name="GPA(sees y)",
        mu_x=0.5,
        mu_y=0.8,
    ),
    row(
        lambda **data: eqopt.EMANesterov(eqopt.Adam(0.01), start=1, stop=3, **data),
        name="EMANesterov(start, stop)",
        exempt={
            "test_hyperparameters_take_schedules": "a step extrapolates by the `beta` "
            "that its schedule has for the next step"
        },
        beta=0.5,
        decay=0.8,
    ),
    row(
        lambda decay=0.9: eqopt.ParamEMA(
            eqopt.Adam(0.01), decay, debias=False, accumulator_dtype=jnp.float32
        ),
        name="ParamEMA(biased, float32)",
        decay=0.8,
    ),
    row(lambda: eqopt.ParamEMA(eqopt.Adam(0.01), halve), name="ParamEMA(schedule)"),
    row(
        lambda: eqopt.ParamEMA(eqopt.Lookahead(eqopt.Adam(0.01), 2, 0.5), 0.9),
        name="ParamEMA(Lookahead)",
    ),
    row(
        lambda: eqopt.SWA(
            eqopt.ParamEMA(eqopt.Adam(0.01), 0.9), 1, accumulator_dtype=jnp.float32
        ),
        name="SWA(ParamEMA, float32)",
        exempt={
            "test_nothing_is_rounded_between_parts": "a float32 average sees what the "
            "updates that leave have been rounded to"
        },
    ),
]
