"""Adam and its kin."""

import jax.numpy as jnp
import optax

import eqopt

from ..case import COSINE, LINEAR, Case, TorchCase, is_matrix


CASES = {
    "adam": Case(eqopt.Adam(0.1), optax.adam(0.1)),
    "adam, other": Case(
        eqopt.Adam(COSINE[0], 0.5, 0.9, 1e-3, 1e-4),
        optax.adam(COSINE[1], 0.5, 0.9, 1e-3, 1e-4),
    ),
    "adam, nesterov": Case(
        eqopt.Adam(0.1, b1=0.8, nesterov=True),
        optax.adam(0.1, b1=0.8, nesterov=True),
    ),
    "adam, float16 mu": Case(
        eqopt.Adam(0.1, mu_dtype=jnp.float16),
        optax.adam(0.1, mu_dtype=jnp.float16),
        rtol=2e-3,  # Optax multiplies the float16 moment by b1 in float16
    ),
    "adamw": Case(eqopt.AdamW(0.1), optax.adamw(0.1)),
    "adamw, masked": Case(
        eqopt.AdamW(LINEAR[0], weight_decay=0.3, mask=is_matrix),
        optax.adamw(LINEAR[1], weight_decay=0.3, mask=is_matrix),
    ),
    "adamw, other": Case(
        eqopt.AdamW(0.1, 0.7, 0.8, 1e-2, weight_decay=1.0, nesterov=True),
        optax.adamw(0.1, 0.7, 0.8, 1e-2, weight_decay=1.0, nesterov=True),
    ),
}

TORCH = {
    "adam": TorchCase(eqopt.Adam(0.1), "Adam", {"lr": 0.1}),
    "adam, other": TorchCase(
        eqopt.Adam(0.1, 0.5, 0.9, 1e-3),
        "Adam",
        {"lr": 0.1, "betas": (0.5, 0.9), "eps": 1e-3},
    ),
    "adamw": TorchCase(
        eqopt.AdamW(0.1, weight_decay=0.3), "AdamW", {"lr": 0.1, "weight_decay": 0.3}
    ),
}
