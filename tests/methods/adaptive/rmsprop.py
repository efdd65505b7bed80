"""RMSprop: gradients over the root of their mean square, or over their deviation."""

import jax.numpy as jnp
import optax

import eqopt

from ...laws.row import row
from ...parity.case import COSINES, LINEARS, Case, both
from ..method import Method, same


RMS = {"decay": 0.8, "eps": 1e-3, "initial_scale": 0.5}


OTHER = {"decay": 0.7, "eps": 1e-3, "initial_scale": 0.5}


CORRECTED = {
    "eps": 1e-2,
    "initial_scale": 0.5,  # or the first variance is the rounding of a difference
    "eps_in_sqrt": False,
    "bias_correction": True,
}

METHODS = [
    Method(
        eqopt.RMSprop,
        idea="the gradient over the root of the mean square",
        in_optax="rmsprop",
        default_rate=0.001,
        rates=(0.0032, 0.001, 0.001, 0.001),
        laws=[
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
            row(eqopt.RMSprop, at=0.01, learning_rate=0.1, **RMS),
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
        ],
        cases={
            "rmsprop": same(0.1, converts=True),
            "rmsprop, momentum": same(COSINES, momentum=0.8, **OTHER, converts=True),
            "rmsprop, centered": same(
                LINEARS,
                centered=True,
                momentum=0.8,
                nesterov=True,
                **CORRECTED,
                converts=True,
            ),
            "rmsprop, rms": Case(
                eqopt.ScaleByRMS(), optax.scale_by_rms(), converts=True
            ),
            "rmsprop, rms, corrected": both(
                eqopt.ScaleByRMS, optax.scale_by_rms, **CORRECTED, converts=True
            ),
            "rmsprop, stddev": both(
                eqopt.ScaleByStddev, optax.scale_by_stddev, converts=True
            ),
            "rmsprop, stddev, corrected": both(
                eqopt.ScaleByStddev, optax.scale_by_stddev, **CORRECTED, converts=True
            ),
        },
    ),
]
