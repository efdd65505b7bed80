"""Optimizers that look at the sign of the gradient."""

import jax.numpy as jnp
import optax

import eqopt

from ..case import COSINE, LINEAR, Case, TorchCase, is_matrix


CASES = {
    "lion": Case(eqopt.Lion(0.1), optax.lion(0.1)),
    "lion, other": Case(
        eqopt.Lion(LINEAR[0], 0.5, 0.3, weight_decay=0.1, mask=is_matrix),
        optax.lion(LINEAR[1], 0.5, 0.3, weight_decay=0.1, mask=is_matrix),
    ),
    "lion, smooth": Case(
        eqopt.ScaleByLion(0.8, 0.9, mode="smooth", smooth_beta=3.0),
        optax.scale_by_lion(0.8, 0.9, mode="smooth", smooth_beta=3.0),
    ),
    "lion, refined": Case(
        eqopt.ScaleByLion(0.8, 0.9, mode="refined"),
        optax.scale_by_lion(0.8, 0.9, mode="refined"),
    ),
    "lion, b2 = 0": Case(eqopt.ScaleByLion(0.8, 0.0), optax.scale_by_lion(0.8, 0.0)),
    "sign": Case(eqopt.ScaleBySign(), optax.scale_by_sign()),
    "sign_sgd": Case(eqopt.SignSGD(0.1), optax.sign_sgd(0.1)),
    "sign_sgd, schedule": Case(eqopt.SignSGD(COSINE[0]), optax.sign_sgd(COSINE[1])),
    "signum": Case(eqopt.Signum(0.1), optax.signum(0.1)),
    "signum, other": Case(eqopt.Signum(LINEAR[0], 0.5), optax.signum(LINEAR[1], 0.5)),
    "signum, float32": Case(
        eqopt.Signum(0.1, 0.7, jnp.float32), optax.signum(0.1, 0.7, jnp.float32)
    ),
}

# Rprop in Optax is one step late: see the departures.
TORCH = {
    "rprop": TorchCase(eqopt.Rprop(0.1), "Rprop", {"lr": 0.1}),
    "rprop, other": TorchCase(
        eqopt.Rprop(0.1, 0.3, 1.7, 0.05, 0.2),
        "Rprop",
        {"lr": 0.1, "etas": (0.3, 1.7), "step_sizes": (0.05, 0.2)},
    ),
    "rprop, first step too large": TorchCase(
        eqopt.Rprop(0.4, max_step_size=0.2),
        "Rprop",
        {"lr": 0.4, "step_sizes": (1e-6, 0.2)},
    ),
}
