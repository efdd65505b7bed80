"""ADOPT: Adam that normalizes before it averages."""

import jax.numpy as jnp
import optax

import eqopt

from ...laws.row import row
from ...parity.case import LINEARS, Case, both
from ..method import Method, same


METHODS = [
    Method(
        eqopt.ADOPT,
        idea=r"Adam that converges for any $\beta_2$",
        in_optax="contrib.adopt",
        rates=(0.01, 0.1, 0.0032, 0.001),
        laws=[
            row(eqopt.ScaleByADOPT, b1=0.8, b2=0.9, eps=1e-3),
            row(eqopt.ADOPT, at=0.01, learning_rate=0.1, b1=0.5, b2=0.9),
            row(
                lambda: eqopt.ADOPT(0.01, nesterov=True, use_clipping=False),
                name="ADOPT(nesterov, not clipped)",
            ),
        ],
        cases={
            "adopt": same(0.1),
            "adopt, other": same(LINEARS, 0.5, 0.9, 1e-2, nesterov=True),
            "adopt, not clipped": Case(
                # With the default `eps`, Optax is NaN in float16.
                eqopt.ScaleByADOPT(b2=0.9, eps=1e-2, use_clipping=False),
                optax.contrib.scale_by_adopt(b2=0.9, eps=1e-2, use_clipping=False),
            ),
            "adopt, clip_value_fn": both(
                eqopt.ScaleByADOPT,
                optax.contrib.scale_by_adopt,
                clip_value_fn=LINEARS,
                mu_dtype=jnp.float32,
            ),
        },
    ),
]
