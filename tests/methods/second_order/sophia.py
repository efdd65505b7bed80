"""Sophia: momentum, divided by an estimate of the curvature and clipped."""

import jax.numpy as jnp

import eqopt

from ...laws.row import LINEAR, Evaluated, row
from ...parity.case import LINEARS, curved, is_matrix
from ..method import Method, same


METHODS = [
    Method(
        eqopt.Sophia,
        idea="clipped steps divided by an estimate of the curvature",
        in_optax="contrib.sophia",
        rates=(0.0032, 0.001, 0.001, 0.001),
        laws=[
            row(
                lambda learning_rate=0.01, **data: Evaluated(
                    eqopt.Sophia(learning_rate, **data)
                ),
                name="Sophia",
                learning_rate=0.1,
                b1=0.5,
                b2=0.9,
                gamma=0.5,
                clip_threshold=0.5,
                weight_decay=0.3,
            ),
            row(
                lambda: Evaluated(
                    eqopt.Sophia(
                        LINEAR,
                        update_interval=2,
                        mu_dtype="float32",
                        track_win_rate=True,
                    )
                ),
                name="Sophia(win rate)",
            ),
        ],
        cases={
            "sophia": same(
                0.1,
                mu_dtype=jnp.float32,
                extra=curved,
                rtol=1e-4,
                # In bfloat16, rounding turns the sign of a momentum that is nearly zero.
                # Dividing by a small curvature magnifies what rounding leaves of mu.
            ),
            "sophia, other": same(
                LINEARS,
                0.5,
                0.3,
                1e-3,
                0.3,
                is_matrix,
                gamma=1.0,
                update_interval=3,
                extra=curved,
            ),
            "sophia, not clipped": same(
                0.01,
                eps=0.1,
                gamma=1.0,
                clip_threshold=None,
                update_interval=1,
                extra=curved,
            ),
        },
    ),
]
