"""Adadelta: steps in the units of the parameters."""

import jax.numpy as jnp
import optax

import eqopt

from ...laws.row import LINEAR, row
from ...parity.case import LINEARS, Case, is_matrix, tree_mask
from ..method import Method, same


METHODS = [
    Method(
        eqopt.Adadelta,
        idea="RMSprop with updates in the units of the parameters",
        in_optax="adadelta",
        default_rate=1.0,
        rates=(1, 0.32, 0.32, 0.32),
        laws=[
            row(eqopt.ScaleByAdadelta, rho=0.8, eps=1e-3),
            row(eqopt.Adadelta, learning_rate=0.5, rho=0.8, eps=1e-3, weight_decay=0.3),
            row(
                lambda: eqopt.Adadelta(
                    LINEAR, weight_decay=LINEAR, mask=is_matrix, nu_dtype=jnp.float32
                ),
                name="Adadelta(schedules, mask)",
            ),
        ],
        cases={
            "adadelta": Case(eqopt.Adadelta(), optax.adadelta(1.0)),
            "adadelta, masked": same(
                LINEARS,
                weight_decay=0.3,
                ours={"mask": is_matrix},
                theirs={"weight_decay_mask": is_matrix},
                converts=True,
            ),
            "adadelta, other": same(10.0, 0.5, 1e-3, LINEARS, tree_mask),
            "scale by adadelta, rho = 0": Case(
                eqopt.ScaleByAdadelta(0.0), optax.scale_by_adadelta(0.0)
            ),
        },
    )
]
