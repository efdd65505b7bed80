"""Gradient descent that tells little about any one example."""

import warnings

import optax

import eqopt

from ...laws.row import LINEAR, OTHER_NOISE, PerExample, row
from ...parity.case import COSINES, Batched, Case, batched
from ..method import Method


def dpsgd(*args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its `seed`, for which it has no other name
        return optax.contrib.dpsgd(*args, **kwargs)


METHODS = [
    Method(
        eqopt.DPSGD,
        idea="SGD that protects the examples it sees",
        in_optax="contrib.dpsgd",
        ours=lambda rate: eqopt.DPSGD(rate, 1.0, 0.0, key=0),
        theirs=lambda rate: dpsgd(rate, 1.0, 0.0, 0),
        default_rate=0.1,
        rates=(0.01, 0.001, 0.032, 0.32),
        per_example=True,
        laws=[
            row(
                lambda learning_rate=0.1, l2_norm_clip=0.5, momentum=0.9: PerExample(
                    eqopt.DPSGD(
                        learning_rate, l2_norm_clip, 0.0, 0, momentum, nesterov=True
                    )
                ),
                name="DPSGD(momentum, no noise)",
                learning_rate=0.2,
                l2_norm_clip=0.3,
                momentum=0.5,
            ),
            row(
                lambda learning_rate=0.1, l2_norm_clip=0.5, batch_size=10.0: (
                    eqopt.DPSGD(
                        learning_rate,
                        l2_norm_clip,
                        1.0,
                        0,
                        batch_size=batch_size,
                        clipped=True,
                    )
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
        ],
        cases={
            "dpsgd": Case(
                Batched(eqopt.DPSGD(0.1, 0.7, 0.0, 0)), batched(dpsgd(0.1, 0.7, 0.0, 0))
            ),
            "dpsgd, nesterov": Case(
                Batched(eqopt.DPSGD(COSINES[0], 0.2, 0.0, 0, 0.8, True)),
                batched(dpsgd(COSINES[1], 0.2, 0.0, 0, 0.8, True)),
            ),
            "dpsgd, momentum": Case(
                Batched(eqopt.DPSGD(0.1, 5.0, 0.0, 0, momentum=0.5)),
                batched(dpsgd(0.1, 5.0, 0.0, 0, momentum=0.5)),
            ),
        },
    ),
]
