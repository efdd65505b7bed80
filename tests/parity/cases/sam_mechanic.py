"""Sharpness-aware minimization, and Mechanic."""

import functools

import jax
import jax.numpy as jnp
import optax

import eqopt

from ..case import LINEARS, Case


def loss(params):
    return sum(jnp.sum(jnp.sin(2 * p) * p) for p in jax.tree.leaves(params))


# Other gradients in each adversarial step.
Opaque = functools.partial(
    Case, extra=lambda params: {"grad_fn": jax.grad(lambda p, i: (1 + i) * loss(p))}
)

# In half precision Optax's statistics are of half precision, too.
Mechanic = functools.partial(Case, dtypes=(jnp.float32,))

ADVERSARIES = {
    "paper": (
        eqopt.Chain(eqopt.Normalize(), eqopt.Scale(-0.05)),
        optax.chain(optax.contrib.normalize(), optax.sgd(0.05)),
    ),
    "momentum": (eqopt.SGD(0.03, 0.9), optax.sgd(0.03, 0.9)),
    "adam": (eqopt.Adam(0.03, b2=0.9), optax.adam(0.03, b2=0.9)),
}
SETTINGS = [
    # adversary, sync_period, reset_state
    ("paper", 3, True),
    ("momentum", 4, True),
    ("adam", 2, False),
]
CASES = {
    f"sam, {name}, {k}, {reset}, {mode}": make(
        eqopt.SAM(
            eqopt.AdamW(LINEARS[0], weight_decay=0.1),
            ADVERSARIES[name][0],
            k,
            reset,
            mode == "opaque",
        ),
        optax.contrib.sam(
            optax.adamw(LINEARS[1], weight_decay=0.1),
            ADVERSARIES[name][1],
            k,
            reset,
            mode == "opaque",
        ),
    )
    for name, k, reset in SETTINGS
    for mode, make in {"transparent": Case, "opaque": Opaque}.items()
}
CASES |= {
    "sam, default": Case(
        eqopt.SAM(eqopt.SGD(0.1, 0.9)),
        optax.contrib.sam(optax.sgd(0.1, 0.9), ADVERSARIES["paper"][1]),
    ),
    # An eps that is negligible compared with the factor: see the departures for others.
    "mechanic": Mechanic(
        eqopt.Mechanic(eqopt.SGD(1.0), eps=1e-12, s_init=1e-3),
        optax.contrib.mechanize(optax.sgd(1.0), eps=1e-12, s_init=1e-3),
    ),
    "mechanic, default": Mechanic(
        eqopt.Mechanic(eqopt.Adam(1.0)), optax.contrib.mechanize(optax.adam(1.0))
    ),
    "mechanic, other": Mechanic(
        eqopt.Mechanic(eqopt.SGD(0.5, 0.9), 0.3, 1e-8, 0.1, 3),
        optax.contrib.mechanize(optax.sgd(0.5, 0.9), 0.3, 1e-8, 0.1, 3),
    ),
    "mechanic, adamw": Mechanic(
        eqopt.Mechanic(eqopt.AdamW(LINEARS[0]), 0.0, 1e-7, 1.0, 1),
        optax.contrib.mechanize(optax.adamw(LINEARS[1]), 0.0, 1e-7, 1.0, 1),
    ),
}
