"""The sign of the gradient, or of its running mean."""

import jax.numpy as jnp
import optax

import eqopt

from ...laws.row import LINEAR, row
from ...parity.case import COSINES, LINEARS, Case
from ..method import Method, same


def shorter(count):
    return 0.9 / (1 + count)


METHODS = [
    Method(
        eqopt.SignSGD,
        idea="the sign of the gradient",
        in_optax="sign_sgd",
        rates=(0.0032, 0.001, 0.001, 0.001),
        laws=[row(eqopt.ScaleBySign), row(eqopt.SignSGD, at=0.01, learning_rate=0.1)],
        cases={
            "sign_sgd": same(0.1),
            "sign_sgd, schedule": same(COSINES, converts=True),
            "sign": Case(eqopt.ScaleBySign(), optax.scale_by_sign()),
        },
    ),
    Method(
        eqopt.Signum,
        idea="the sign of a momentum",
        in_optax="signum",
        rates=(0.0032, 0.001, 0.001, 0.001),
        laws=[
            row(eqopt.Signum, at=0.01, learning_rate=0.1, beta=0.5),
            row(
                lambda: eqopt.Signum(LINEAR, accumulator_dtype="float32"),
                name="Signum(schedule, float32 momentum)",
            ),
        ],
        cases={
            "signum": same(0.1),
            "signum, other": same(LINEARS, 0.5, converts=True),
            "signum, scheduled beta": Case(
                eqopt.Scheduled(eqopt.Signum(0.1, shorter)),
                optax.inject_hyperparams(optax.signum)(0.1, shorter),
            ),
            "signum, float32": same(0.1, 0.7, jnp.float32),
        },
    ),
]
