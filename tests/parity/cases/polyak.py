"""Step sizes from the loss."""

import functools

import jax.numpy as jnp
import optax

import eqopt

from ..case import COSINE, LINEAR, Case


def loss(params):
    return {"value": 1 + eqopt.tree.norm(params, squared=True) / 10}


Evaluated = functools.partial(Case, extra=loss)


CASES = {
    "polyak": Evaluated(eqopt.ScaleByPolyak(), optax.scale_by_polyak()),
    "polyak, other": Evaluated(
        eqopt.ScaleByPolyak(1.0, 0.05, 1.0, "sps+"),
        optax.scale_by_polyak(1.0, 0.05, 1.0, "sps+"),
    ),
    "polyak_sgd": Evaluated(eqopt.PolyakSGD(), optax.polyak_sgd()),
    "polyak_sgd, uphill": Evaluated(
        eqopt.PolyakSGD(f_min=9.0, eps=0.1), optax.polyak_sgd(f_min=9.0, eps=0.1)
    ),
    # Always capped: below the cap Optax divides by what it should scale by.
    "polyak_sgd, schedule": Evaluated(
        eqopt.PolyakSGD(0.01, LINEAR[0], variant="sps+"),
        optax.polyak_sgd(0.01, LINEAR[1], variant="sps+"),
    ),
    "momo": Evaluated(eqopt.MoMo(), optax.contrib.momo()),
    "momo, other": Evaluated(
        eqopt.MoMo(COSINE[0], 0.5, 0.3), optax.contrib.momo(COSINE[1], 0.5, 0.3)
    ),
    "momo, adaptive bound": Evaluated(
        eqopt.MoMo(0.1, lower_bound=-9.0, adapt_lower_bound=True),
        optax.contrib.momo(0.1, lower_bound=-9.0, adapt_lower_bound=True),
    ),
    "momo, float32": Evaluated(
        eqopt.MoMo(0.1, mu_dtype=jnp.float32), optax.contrib.momo(0.1)
    ),
    "momo_adam": Evaluated(eqopt.MoMoAdam(), optax.contrib.momo_adam()),
    "momo_adam, other": Evaluated(
        eqopt.MoMoAdam(LINEAR[0], 0.5, 0.8, 1e-3, 0.3, adapt_lower_bound=True),
        optax.contrib.momo_adam(LINEAR[1], 0.5, 0.8, 1e-3, 0.3, adapt_lower_bound=True),
    ),
    "momo_adam, below the cap": Evaluated(
        eqopt.MoMoAdam(10.0, nu_dtype=jnp.float32), optax.contrib.momo_adam(10.0)
    ),
}
