"""AdEMAMix: a fast and a slow momentum."""

import jax.numpy as jnp
import optax

import eqopt

from ...laws.row import LINEAR, halve, row
from ...parity.case import COSINES, LINEARS, Case, is_matrix
from ..method import Method, same


METHODS = [
    Method(
        eqopt.AdEMAMix,
        idea="Adam with a second, slow momentum",
        in_optax="contrib.ademamix",
        rates=(0.0032, 0.01, 0.0032, 0.001),
        laws=[
            row(eqopt.ScaleByAdEMAMix, b1=0.8, b2=0.9, b3=0.99, alpha=3.0, eps=1e-3),
            row(
                eqopt.AdEMAMix,
                at=0.01,
                learning_rate=0.1,
                b3=0.9,
                alpha=2.0,
                weight_decay=0.3,
            ),
            row(
                lambda: eqopt.AdEMAMix(
                    0.01, b3=halve, alpha=LINEAR, mu_dtype="float32"
                ),
                name="AdEMAMix(schedules)",
            ),
        ],
        cases={
            "ademamix": same(0.1),
            "ademamix, schedules": same(
                COSINES,
                0.5,
                0.9,
                LINEARS,
                COSINES,
                weight_decay=0.3,
                mask=is_matrix,
                converts=True,
            ),
            "ademamix, float16 means": Case(
                eqopt.AdEMAMix(0.1, mu_dtype=jnp.float16, nu_dtype=jnp.float16),
                optax.contrib.ademamix(0.1, mu_dtype=jnp.float16),
                rtol=2e-3,  # Optax multiplies the float16 moments in float16
            ),
            "scale_by_ademamix": Case(
                eqopt.ScaleByAdEMAMix(eps=1e-3, eps_root=1e-2),
                optax.contrib.scale_by_ademamix(eps=1e-3, eps_root=1e-2),
            ),
        },
    ),
]
