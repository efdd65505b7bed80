"""Optimistic gradients: the next one is expected to change as the last one did."""

import optax

import eqopt

from ...laws.row import row
from ...parity.case import COSINES, Case
from ..method import Method


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
            "optimistic_gradient_descent": Case(
                eqopt.OptimisticGradientDescent(0.1),
                optax.optimistic_gradient_descent(0.1),
            ),
            "optimistic_gradient_descent, other": Case(
                eqopt.OptimisticGradientDescent(COSINES[0], 0.5, 2.0),
                optax.optimistic_gradient_descent(COSINES[1], 0.5, 2.0),
            ),
        },
    ),
]
