"""L-BFGS: the inverse of the Hessian, guessed from the last few steps."""

import eqopt

from ...laws.row import LINEAR, evaluated, row
from ..method import Method


METHODS = [
    Method(
        eqopt.LBFGS,
        idea="the inverse Hessian, estimated from the last steps; "
        "for deterministic losses",
        in_optax="lbfgs",
        default_rate=1.0,
        laws=[
            row(eqopt.ScaleByLBFGS),
            row(
                lambda: eqopt.ScaleByLBFGS(2, scale_init_precond=False),
                name="ScaleByLBFGS(2, unscaled)",
            ),
            row(
                evaluated(eqopt.LBFGS, memory_size=2),
                name="LBFGS",
                exempt={
                    "test_no_default_stands_still": "the gradient is from "
                    "parameters on the line, which are rounded"
                },
            ),
            row(
                lambda learning_rate=LINEAR: eqopt.LBFGS(
                    learning_rate, 2, linesearch=None
                ),
                name="LBFGS(schedule, no line search)",
                learning_rate=0.5,
            ),
            row(
                evaluated(eqopt.ProjectedLBFGS, memory_size=2),
                name="ProjectedLBFGS",
                exempt={
                    "test_complex_parameters": "bounds are for real numbers",
                    "test_no_default_stands_still": "the gradient is from "
                    "parameters on the line, which are rounded",
                },
                lower=-0.5,
                upper=0.5,
            ),
        ],
    ),
]
