"""MoMo: momentum, and Adam, with a step size from the loss."""

import functools

import jax.numpy as jnp
import optax

import eqopt

from ...laws.row import LINEAR, Evaluated, evaluated, row
from ...parity.case import COSINES, LINEARS, Case, is_matrix
from ..method import Method, same


def loss(params):
    return {"value": 1 + eqopt.tree.norm(params, squared=True) / 10}


LossCase = functools.partial(Case, extra=loss)

METHODS = [
    Method(
        eqopt.MoMo,
        idea="PolyakSGD with momentum",
        in_optax="contrib.momo",
        default_rate=1.0,
        rates=(0.01, 0.001, 0.01, 0.1),
        laws=[
            row(
                evaluated(eqopt.MoMo),
                name="MoMo",
                learning_rate=0.1,
                beta=0.5,
                lower_bound=0.2,
                weight_decay=0.3,
            ),
            row(
                evaluated(eqopt.MoMo, adapt_lower_bound=True, mask=is_matrix),
                name="MoMo(adaptive bound, mask)",
                learning_rate=0.1,
                lower_bound=0.2,
                weight_decay=0.3,
            ),
            row(
                lambda: Evaluated(
                    eqopt.MoMo(LINEAR, weight_decay=LINEAR, mu_dtype="float32")
                ),
                name="MoMo(schedules, float32 moment)",
            ),
        ],
        cases={
            "momo": same(extra=loss),
            "momo, other": same(COSINES, 0.5, 0.3, extra=loss),
            "momo, adaptive bound": same(
                0.1, lower_bound=-9.0, adapt_lower_bound=True, extra=loss
            ),
        },
    ),
    Method(
        eqopt.MoMoAdam,
        idea="PolyakSGD with Adam",
        in_optax="contrib.momo_adam",
        default_rate=0.01,
        rates=(0.0032, 0.01, 0.0032, 0.001),
        laws=[
            row(
                evaluated(eqopt.MoMoAdam),
                name="MoMoAdam",
                learning_rate=0.1,
                b1=0.5,
                b2=0.7,
                eps=1e-3,
                lower_bound=0.2,
                weight_decay=0.3,
            ),
            row(
                lambda: Evaluated(
                    eqopt.MoMoAdam(
                        LINEAR,
                        weight_decay=0.1,
                        adapt_lower_bound=True,
                        mask=is_matrix,
                        mu_dtype="float32",
                        nu_dtype="float32",
                    )
                ),
                name="MoMoAdam(schedule, adaptive bound, mask, float32 moments)",
            ),
        ],
        cases={
            "momo_adam": same(extra=loss),
            "momo_adam, other": same(
                LINEARS, 0.5, 0.8, 1e-3, 0.3, adapt_lower_bound=True, extra=loss
            ),
            "momo_adam, below the cap": LossCase(
                eqopt.MoMoAdam(10.0, nu_dtype=jnp.float32),
                optax.contrib.momo_adam(10.0),
            ),
        },
    ),
]
