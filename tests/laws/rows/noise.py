"""Noise, and means of per-example gradients."""

import eqopt

from ..row import OTHER_NOISE, PerExample, row


ROWS = [
    row(
        lambda eta=0.01, gamma=0.55: eqopt.AddNoise(eta, gamma, key=0),
        name="AddNoise",
        exempt=OTHER_NOISE,
        eta=0.1,
        gamma=0.3,
    ),
    row(lambda: eqopt.AddNoise(0.0, 0.55, key=0), name="AddNoise(no noise)"),
    row(
        lambda stddev=0.1: eqopt.AddCorrelatedNoise(stddev, (1.0, 0.5, 0.375), key=0),
        name="AddCorrelatedNoise",
        exempt=OTHER_NOISE,
        stddev=0.3,
    ),
    row(
        lambda stddev=0.1: eqopt.AddCorrelatedNoise(
            stddev, (1.0, -0.5, -0.125), key=0, inverse=True
        ),
        name="AddCorrelatedNoise(inverse)",
        exempt=OTHER_NOISE,
        stddev=0.3,
    ),
    row(
        lambda l2_norm_clip=0.5, noise_multiplier=1.0: PerExample(
            eqopt.DifferentiallyPrivateAggregate(l2_norm_clip, noise_multiplier, key=0)
        ),
        name="DifferentiallyPrivateAggregate",
        exempt=OTHER_NOISE,
        l2_norm_clip=0.3,
        noise_multiplier=0.2,
    ),
]
