"""Gradient descent and momentum."""

import optax

import eqopt

from ..case import LINEAR, Case, TorchCase


CASES = {
    "sgd": Case(eqopt.SGD(0.1), optax.sgd(0.1)),
    "sgd, momentum": Case(eqopt.SGD(LINEAR[0], 0.9), optax.sgd(LINEAR[1], 0.9)),
    "sgd, nesterov": Case(
        eqopt.SGD(0.1, 0.5, nesterov=True),
        optax.sgd(0.1, 0.5, nesterov=True),
    ),
}

TORCH = {
    "sgd": TorchCase(eqopt.SGD(0.1), "SGD", {"lr": 0.1}),
    "sgd, momentum": TorchCase(
        eqopt.SGD(0.1, 0.8), "SGD", {"lr": 0.1, "momentum": 0.8}
    ),
    "sgd, nesterov": TorchCase(
        eqopt.SGD(0.1, 0.8, nesterov=True),
        "SGD",
        {"lr": 0.1, "momentum": 0.8, "nesterov": True},
    ),
}
