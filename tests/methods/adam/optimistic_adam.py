"""Optimistic Adam: the next update is expected to change as the last one did."""

import jax.numpy as jnp
import optax

import eqopt

from ...laws.row import LINEAR, row
from ...parity.case import COSINES, Case
from ..method import Method, same


METHODS = [
    Method(
        eqopt.OptimisticAdam,
        idea="Adam for games",
        in_optax="optimistic_adam_v2",
        rates=(0.0032, 0.01, 0.0032, 0.001),
        laws=[
            row(
                eqopt.OptimisticAdam,
                at=0.01,
                learning_rate=0.1,
                optimism=0.3,
                b1=0.5,
                b2=0.9,
            ),
            row(lambda: eqopt.OptimisticAdam(LINEAR), name="OptimisticAdam(schedule)"),
        ],
        cases={
            "optimistic_adam": same(0.1),
            "optimistic_adam, schedule": same(COSINES, b1=0.5, nesterov=False),
            "optimistic_adam, optimism": Case(
                eqopt.OptimisticAdam(0.1, 0.03, eps=1e-3, mu_dtype=jnp.float32),
                optax.optimistic_adam_v2(
                    1.0, alpha=0.1, beta=0.03, eps=1e-3, mu_dtype=jnp.float32
                ),
            ),
        },
    ),
]
