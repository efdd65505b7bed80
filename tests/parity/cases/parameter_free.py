"""Optimizers that find their learning rate by themselves."""

import jax.numpy as jnp
import optax

import eqopt

from ..case import LINEAR, Case, is_matrix


# In float16 the squares of 1e-6, or the 1e-8 under or beside a root, are zero in Optax.
IN_RANGE = (jnp.float32, jnp.bfloat16)

CASES = {
    "prodigy": Case(eqopt.Prodigy(), optax.contrib.prodigy(), dtypes=IN_RANGE),
    "prodigy, other": Case(
        eqopt.Prodigy(
            0.5,
            b1=0.8,
            b2=0.9,
            b3=0.7,
            eps=1e-3,
            estim_lr0=0.1,
            estim_lr_coef=2.0,
            weight_decay=0.3,
        ),
        optax.contrib.prodigy(0.5, (0.8, 0.9), 0.7, 1e-3, 0.1, 2.0, 0.3),
    ),
    "prodigy, schedule": Case(
        eqopt.Prodigy(LINEAR[0], estim_lr0=0.1, safeguard_warmup=True),
        optax.contrib.prodigy(LINEAR[1], estim_lr0=0.1, safeguard_warmup=True),
    ),
    "dadapt_adamw": Case(
        eqopt.DAdaptAdamW(), optax.contrib.dadapt_adamw(), dtypes=IN_RANGE
    ),
    "dadapt_adamw, other": Case(
        eqopt.DAdaptAdamW(0.5, 0.8, 0.9, 1e-3, 0.1, 0.3),
        optax.contrib.dadapt_adamw(0.5, (0.8, 0.9), 1e-3, 0.1, 0.3),
    ),
    "dadapt_adamw, schedule": Case(
        eqopt.DAdaptAdamW(LINEAR[0], estim_lr0=0.1),
        optax.contrib.dadapt_adamw(LINEAR[1], estim_lr0=0.1),
        dtypes=IN_RANGE,
    ),
    "dog": Case(eqopt.DoG(), optax.contrib.dog()),
    "dog, distance": Case(
        eqopt.DoG(0.5, ("distance", 0.2), 1e-3, weight_decay=0.3, mask=is_matrix),
        optax.contrib.dog(
            0.5, ("distance", 0.2), 1e-3, weight_decay=0.3, mask=is_matrix
        ),
    ),
    "dog, learning rate": Case(
        eqopt.DoG(LINEAR[0], ("learning_rate", 0.3)),
        optax.contrib.dog(LINEAR[1], ("learning_rate", 0.3)),
    ),
    "dowg": Case(eqopt.DoWG(), optax.contrib.dowg()),
    "dowg, other": Case(
        eqopt.DoWG(0.5, 0.3, 1e-3, 0.3, is_matrix),
        optax.contrib.dowg(0.5, 0.3, 1e-3, 0.3, is_matrix),
    ),
    "dowg, schedule": Case(eqopt.DoWG(LINEAR[0]), optax.contrib.dowg(LINEAR[1])),
    "distance_over_gradients": Case(
        eqopt.ScaleByDistanceOverGradients(), optax.scale_by_distance_over_gradients()
    ),
    "distance_over_gradients, other": Case(
        eqopt.ScaleByDistanceOverGradients(1e-2, 1e-3, jnp.bfloat16, -0.5),
        optax.scale_by_distance_over_gradients(1e-2, 1e-3, jnp.bfloat16, -0.5),
    ),
    "scale_by_cocob": Case(
        eqopt.ScaleByCOCOB(10.0, 1e-3), optax.contrib.scale_by_cocob(10.0, 1e-3)
    ),
    "cocob": Case(eqopt.COCOB(), optax.contrib.cocob()),
    "cocob, masked": Case(
        eqopt.COCOB(LINEAR[0], 5.0, weight_decay=0.3, mask=is_matrix),
        optax.contrib.cocob(LINEAR[1], 5.0, weight_decay=0.3, mask=is_matrix),
    ),
    "cocob, float32": Case(
        eqopt.COCOB(accumulator_dtype=jnp.float32), optax.contrib.cocob()
    ),
}
