"""Adagrad: gradients over the root of the sum of all their squares."""

import optax

import eqopt

from ...laws.row import row
from ...parity.case import COSINES, Case, both
from ..method import Method, same


METHODS = [
    Method(
        eqopt.Adagrad,
        idea="the gradient over the root of the sum of squares; for sparse gradients",
        in_optax="adagrad",
        default_rate=0.01,
        rates=(0.1, 0.1, 0.032, 0.032),
        laws=[
            row(eqopt.ScaleByRSS, initial_accumulator_value=0.3, eps=1e-3),
            row(
                lambda: eqopt.ScaleByRSS(initial_accumulator_value=0.0, eps=0.0),
                name="ScaleByRSS(zeros)",
            ),
            row(
                lambda: eqopt.ScaleByRSS(eps=1e-3, eps_in_sqrt=False),
                name="ScaleByRSS(outside)",
            ),
            row(
                eqopt.Adagrad,
                at=0.1,
                learning_rate=0.3,
                initial_accumulator_value=0.3,
                eps=1e-3,
            ),
        ],
        cases={
            "adagrad": same(0.1),
            "adagrad, schedule": same(COSINES, 0.5, 1e-3, converts=True),
            "adagrad, rss": Case(eqopt.ScaleByRSS(), optax.scale_by_rss()),
            "adagrad, rss, zeros": both(eqopt.ScaleByRSS, optax.scale_by_rss, 0.0, 0.0),
        },
    ),
]
