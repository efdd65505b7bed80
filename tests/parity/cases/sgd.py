"""Gradient descent: momentum, noise and optimism.

There is no noise in these cases: the two libraries draw other numbers of one key.
"""

import warnings

import optax

import eqopt

from ..case import COSINE, LINEAR, Batched, Case, TorchCase, batched


def dpsgd(*args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its `seed`, for which it has no other name
        return optax.contrib.dpsgd(*args, **kwargs)


CASES = {
    "sgd": Case(eqopt.SGD(0.1), optax.sgd(0.1)),
    "sgd, momentum": Case(eqopt.SGD(LINEAR[0], 0.9), optax.sgd(LINEAR[1], 0.9)),
    "sgd, nesterov": Case(
        eqopt.SGD(0.1, 0.5, nesterov=True),
        optax.sgd(0.1, 0.5, nesterov=True),
    ),
    "noisy_sgd": Case(
        eqopt.NoisySGD(LINEAR[0], 0.0), optax.noisy_sgd(LINEAR[1], 0.0, key=0)
    ),
    "dpsgd": Case(
        Batched(eqopt.DPSGD(0.1, 0.7, 0.0, 0)),
        batched(dpsgd(0.1, 0.7, 0.0, 0)),
    ),
    "dpsgd, nesterov": Case(
        Batched(eqopt.DPSGD(COSINE[0], 0.2, 0.0, 0, 0.8, True)),
        batched(dpsgd(COSINE[1], 0.2, 0.0, 0, 0.8, True)),
    ),
    "dpsgd, momentum": Case(
        Batched(eqopt.DPSGD(0.1, 5.0, 0.0, 0, momentum=0.5)),
        batched(dpsgd(0.1, 5.0, 0.0, 0, momentum=0.5)),
    ),
    "optimistic_gradient_descent": Case(
        eqopt.OptimisticGradientDescent(0.1), optax.optimistic_gradient_descent(0.1)
    ),
    "optimistic_gradient_descent, other": Case(
        eqopt.OptimisticGradientDescent(COSINE[0], 0.5, 2.0),
        optax.optimistic_gradient_descent(COSINE[1], 0.5, 2.0),
    ),
    "scale_by_optimistic_gradient": Case(
        eqopt.ScaleByOptimisticGradient(2.0, 0.3),
        optax.scale_by_optimistic_gradient(2.0, 0.3),
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
