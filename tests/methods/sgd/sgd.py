"""Stochastic gradient descent, with or without momentum."""

import eqopt

from ...laws.row import row
from ...parity.case import LINEARS
from ..method import Method, same


METHODS = [
    Method(
        eqopt.SGD,
        idea="the gradient; with momentum, 4 bytes of state",
        in_optax="sgd",
        default_rate=0.1,
        rates=(0.01, 0.001, 0.01, 0.1),
        laws=[
            row(eqopt.SGD, at=0.1, learning_rate=0.2),
            row(
                lambda learning_rate=0.1, momentum=0.9: eqopt.SGD(
                    learning_rate, momentum, True
                ),
                name="SGD(momentum)",
                learning_rate=0.2,
                momentum=0.5,
            ),
        ],
        cases={
            "sgd": same(0.1, converts=True),
            "sgd, momentum": same(LINEARS, 0.9, converts=True),
            "sgd, nesterov": same(0.1, 0.5, nesterov=True, converts=True),
        },
    ),
]
