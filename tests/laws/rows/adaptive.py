"""Adaptive gradients: sums and means of squares."""

import jax
import jax.numpy as jnp

import eqopt

from ..row import LINEAR, is_matrix, row


def by_row_and_column(params):
    """Dimension numbers of what has two axes or more; the others stack matrices."""
    numbers = eqopt.MatrixDimensionNumbers(-1, -2)
    return jax.tree.map(lambda p: numbers if p.ndim >= 2 else None, params)


RMS = {"decay": 0.8, "eps": 1e-3, "initial_scale": 0.5}

ROWS = [
    row(eqopt.ScaleByRMS, **RMS),
    row(
        lambda **data: eqopt.ScaleByRMS(
            eps_in_sqrt=False, bias_correction=True, **data
        ),
        name="ScaleByRMS(corrected)",
        **RMS,
    ),
    row(eqopt.ScaleByStddev, **RMS),
    row(
        # From zero, the first variance would be the rounding of a difference.
        lambda: eqopt.ScaleByStddev(
            eps=1e-2, initial_scale=0.5, eps_in_sqrt=False, bias_correction=True
        ),
        name="ScaleByStddev(corrected)",
    ),
    row(
        lambda learning_rate=0.01, **data: eqopt.RMSprop(learning_rate, **data),
        name="RMSprop",
        learning_rate=0.1,
        **RMS,
    ),
    row(
        lambda learning_rate=0.01, momentum=0.9, **data: eqopt.RMSprop(
            learning_rate,
            centered=True,
            momentum=momentum,
            nesterov=True,
            mu_dtype="float32",
            accumulator_dtype=jnp.float32,
            nu_dtype="float32",
            **data,
        ),
        name="RMSprop(centered, momentum)",
        learning_rate=0.1,
        momentum=0.5,
        **RMS,
    ),
    row(eqopt.ScaleByRSS, initial_accumulator_value=0.3, eps=1e-3),
    row(
        lambda: eqopt.ScaleByRSS(initial_accumulator_value=0.0, eps=0.0),
        name="ScaleByRSS(zeros)",
    ),
    row(
        lambda learning_rate=0.1, **data: eqopt.Adagrad(learning_rate, **data),
        name="Adagrad",
        learning_rate=0.3,
        initial_accumulator_value=0.3,
        eps=1e-3,
    ),
    row(eqopt.ScaleByAdadelta, rho=0.8, eps=1e-3),
    row(eqopt.Adadelta, learning_rate=0.5, rho=0.8, eps=1e-3, weight_decay=0.3),
    row(
        lambda: eqopt.Adadelta(
            LINEAR, weight_decay=LINEAR, mask=is_matrix, nu_dtype=jnp.float32
        ),
        name="Adadelta(schedules, mask)",
    ),
    row(eqopt.ScaleBySM3, b1=0.8, b2=0.9, eps=1e-3),
    row(lambda: eqopt.ScaleBySM3(b1=None), name="ScaleBySM3(no momentum)"),
    row(
        lambda learning_rate=0.1, **data: eqopt.SM3(learning_rate, **data),
        name="SM3",
        learning_rate=0.3,
        momentum=0.5,
    ),
    row(
        lambda: eqopt.SM3(
            LINEAR, None, weight_dimension_numbers=by_row_and_column, nu_dtype="float32"
        ),
        name="SM3(schedule, matrices)",
    ),
    row(
        lambda learning_rate=0.01, **data: eqopt.ScaleByMADGRAD(learning_rate, **data),
        name="ScaleByMADGRAD",
        learning_rate=0.1,
        momentum=0.5,
        eps=1e-3,
    ),
    row(
        lambda learning_rate=0.01, **data: eqopt.MADGRAD(learning_rate, **data),
        name="MADGRAD",
        learning_rate=0.1,
        momentum=0.5,
        weight_decay=0.3,
        eps=1e-3,
    ),
    row(
        lambda: eqopt.MADGRAD(
            LINEAR, 0.0, LINEAR, 0.0, is_matrix, "float32", nu_dtype="float32"
        ),
        name="MADGRAD(schedules, mask, no eps)",
    ),
]
