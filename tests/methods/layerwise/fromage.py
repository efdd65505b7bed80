"""Fromage: steps of a fixed length, relative to each layer."""

import jax.numpy as jnp

import eqopt

from ...laws.row import LINEAR, row
from ...parity.case import COSINES
from ..method import Method, same


def relative(learning_rate):
    """The learning rate of the paper and of torch."""
    return lambda count: jnp.minimum(
        learning_rate, (1.0 + jnp.asarray(count, jnp.float32)) ** -0.5
    )


METHODS = [
    Method(
        eqopt.Fromage,
        idea="steps relative to the norm of each layer",
        in_optax="fromage",
        default_rate=0.01,
        rates=(0.0032, 0.001, 0.01, 0.01),
        laws=[
            row(eqopt.Fromage, at=0.1, learning_rate=0.02, min_norm=1e-3),
            row(lambda: eqopt.Fromage(LINEAR), name="Fromage(schedule)"),
        ],
        cases={
            "fromage": same(0.1),
            "fromage, other": same(COSINES, 2.0),
            "fromage, large": same(2.0),
        },
    ),
]
