"""Noise, and means of per-example gradients."""

import eqopt

from ..row import LINEAR, PerExample, row


# The normal numbers of a key are others in float64; without noise the law has rows, too.
OTHER_NOISE = {"test_float64": "float64 noise is other noise than float32 noise"}

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
        lambda learning_rate=0.1, **data: eqopt.NoisySGD(learning_rate, **data),
        name="NoisySGD",
        exempt=OTHER_NOISE,
        learning_rate=0.2,
        eta=0.1,
        gamma=0.3,
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
]
