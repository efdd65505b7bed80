"""Optimistic gradients: the next one is expected to change as the last one did."""

import eqopt

from ...laws.row import row
from ...parity.case import COSINES
from ..method import Method, same


METHODS = [
    Method(
        eqopt.OptimisticGradientDescent,
        idea="SGD that expects the gradient to change as it did before; for games",
        in_optax="optimistic_gradient_descent",
        default_rate=0.1,
        rates=(0.01, 0.001, 0.01, 0.1),
        laws=[
            row(eqopt.ScaleByOptimisticGradient, alpha=0.5, beta=2.0),
            row(
                eqopt.OptimisticGradientDescent,
                at=0.1,
                learning_rate=0.2,
                alpha=0.5,
                beta=2.0,
            ),
        ],
        cases={
            "optimistic_gradient_descent": same(0.1),
            "optimistic_gradient_descent, other": same(COSINES, 0.5, 2.0),
        },
    ),
]
