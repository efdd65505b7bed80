"""Gradient descent: momentum, noise and optimism."""

import eqopt

from ..row import LINEAR, OTHER_NOISE, PerExample, row


ROWS = [
    row(
        lambda learning_rate=0.1: eqopt.SGD(learning_rate),
        name="SGD",
        learning_rate=0.2,
    ),
    row(
        lambda learning_rate=0.1, momentum=0.9: eqopt.SGD(
            learning_rate, momentum, True
        ),
        name="SGD(momentum)",
        learning_rate=0.2,
        momentum=0.5,
    ),
    row(
        lambda learning_rate=0.1, **data: eqopt.NoisySGD(learning_rate, **data),
        name="NoisySGD",
        exempt=OTHER_NOISE,
        learning_rate=0.2,
        eta=0.1,
        gamma=0.3,
    ),
    row(
        lambda learning_rate=0.1, l2_norm_clip=0.5, momentum=0.9: PerExample(
            eqopt.DPSGD(learning_rate, l2_norm_clip, 0.0, 0, momentum, nesterov=True)
        ),
        name="DPSGD(momentum, no noise)",
        learning_rate=0.2,
        l2_norm_clip=0.3,
        momentum=0.5,
    ),
    row(
        lambda learning_rate=0.1, l2_norm_clip=0.5, batch_size=10.0: eqopt.DPSGD(
            learning_rate, l2_norm_clip, 1.0, 0, batch_size=batch_size, clipped=True
        ),
        name="DPSGD(clipped)",
        exempt=OTHER_NOISE,
        learning_rate=0.2,
        l2_norm_clip=0.3,
        batch_size=3.0,
    ),
    row(
        lambda: PerExample(eqopt.DPSGD(LINEAR, 0.5, 1.0, key=0)),
        name="DPSGD(schedule)",
        exempt=OTHER_NOISE,
    ),
    row(eqopt.ScaleByOptimisticGradient, alpha=0.5, beta=2.0),
    row(
        lambda learning_rate=0.1, **data: eqopt.OptimisticGradientDescent(
            learning_rate, **data
        ),
        name="OptimisticGradientDescent",
        learning_rate=0.2,
        alpha=0.5,
        beta=2.0,
    ),
]
