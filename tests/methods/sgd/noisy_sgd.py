"""Gradient descent with noise."""

import optax

import eqopt

from ...laws.row import OTHER_NOISE, row
from ...parity.case import LINEARS, Case
from ..method import Method


METHODS = [
    Method(
        eqopt.NoisySGD,
        idea="SGD with noise that decays",
        in_optax="noisy_sgd",
        ours=lambda rate: eqopt.NoisySGD(rate, key=0),
        theirs=lambda rate: optax.noisy_sgd(rate, key=0),
        default_rate=0.1,
        rates=(0.01, 0.001, 0.01, 0.1),
        deviates="the noise is another",
        laws=[
            row(
                eqopt.NoisySGD,
                at=0.1,
                exempt=OTHER_NOISE,
                learning_rate=0.2,
                eta=0.1,
                gamma=0.3,
            ),
        ],
        cases={
            "noisy_sgd": Case(
                eqopt.NoisySGD(LINEARS[0], 0.0), optax.noisy_sgd(LINEARS[1], 0.0, key=0)
            ),
        },
    ),
]
