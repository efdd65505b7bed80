"""Adam, its decoupled twin AdamW, and both with Nesterov momentum."""

import jax.numpy as jnp

import eqopt

from ...laws.row import LINEAR, row
from ...parity.case import COSINES, LINEARS, is_matrix
from ..method import Method, same


def of_mode(mode, cautious=False):
    """AdamW, whose decay depends on the learning rate or on the update."""

    def make(learning_rate=LINEAR, weight_decay=0.1):
        decay = eqopt.AddDecayedWeights(
            weight_decay, None, cautious, mode, max_learning_rate=0.2
        )
        return eqopt.AdamW(learning_rate, weight_decay=decay)

    name = f"AdamW({'cautious' if cautious else mode})"
    return row(make, name=name, learning_rate=0.1, weight_decay=0.3)


METHODS = [
    Method(
        eqopt.Adam,
        idea="the mean gradient over the root of the mean square: try it first",
        in_optax="adam",
        rates=(0.0032, 0.01, 0.0032, 0.001),
        laws=[
            row(eqopt.ScaleByAdam, b1=0.8, b2=0.9, eps=1e-3, eps_root=1e-3),
            row(lambda: eqopt.ScaleByAdam(nesterov=True), name="ScaleByAdam(nesterov)"),
            row(eqopt.Adam, at=0.01, learning_rate=0.1, b1=0.5, b2=0.9, eps=1e-3),
            row(
                lambda: eqopt.Adam(LINEAR, mu_dtype="float32", nu_dtype="float32"),
                name="Adam(schedule, float32 moments)",
            ),
        ],
        cases={
            "adam": same(0.1, converts=True),
            "adam, other": same(COSINES, 0.5, 0.9, 1e-3, 1e-4),
            "adam, nesterov": same(0.1, b1=0.8, nesterov=True, converts=True),
            # Optax multiplies the float16 moment by b1 in float16.
            "adam, float16 mu": same(0.1, mu_dtype=jnp.float16, rtol=2e-3),
        },
    ),
    Method(
        eqopt.AdamW,
        idea="Adam with decoupled weight decay: the standard for transformers",
        in_optax="adamw",
        rates=(0.0032, 0.01, 0.0032, 0.001),
        laws=[
            row(eqopt.AdamW, at=0.01, learning_rate=0.1, weight_decay=0.3),
            of_mode("decoupled", cautious=True),
            of_mode("fully_decoupled"),
            of_mode("independent"),
            of_mode("squared"),
        ],
        cases={
            "adamw": same(0.1),
            "adamw, masked": same(
                LINEARS, weight_decay=0.3, mask=is_matrix, converts=True
            ),
            "adamw, other": same(0.1, 0.7, 0.8, 1e-2, weight_decay=1.0, nesterov=True),
        },
    ),
    Method(
        eqopt.NAdam,
        idea="Adam with Nesterov momentum",
        in_optax="nadam",
        rates=(0.0032, 0.01, 0.0032, 0.001),
        laws=[row(eqopt.NAdam, at=0.01, learning_rate=0.1, b1=0.5, momentum_decay=0.3)],
        cases={"nadam": same(0.1), "nadam, other": same(COSINES, 0.7, 0.8, 1e-2, 1e-3)},
    ),
    Method(
        eqopt.NAdamW,
        idea="AdamW with Nesterov momentum",
        in_optax="nadamw",
        rates=(0.0032, 0.01, 0.0032, 0.001),
        laws=[row(eqopt.NAdamW, at=0.01, learning_rate=0.1, b2=0.9, weight_decay=0.3)],
        cases={
            "nadamw": same(0.1),
            "nadamw, masked": same(LINEARS, weight_decay=0.3, mask=is_matrix),
            "nadamw, scheduled decay": same(
                0.1, 0.7, 0.8, weight_decay=LINEARS, converts=True
            ),
        },
    ),
]
