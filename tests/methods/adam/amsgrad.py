"""AMSGrad: Adam whose second moment never shrinks."""

import jax.numpy as jnp

import eqopt

from ...laws.row import LINEAR, row
from ...parity.case import COSINES, LINEARS
from ..method import Method, same


METHODS = [
    Method(
        eqopt.AMSGrad,
        idea="Adam whose steps never grow",
        in_optax="amsgrad",
        rates=(0.01, 0.1, 0.0032, 0.001),
        laws=[
            row(eqopt.ScaleByAMSGrad, b1=0.8, b2=0.9, eps=1e-3, eps_root=1e-3),
            row(
                lambda: eqopt.AMSGrad(
                    LINEAR,
                    mu_dtype="float32",
                    bias_correction_mu=False,
                    bias_correction_nu=False,
                    nu_dtype="float32",
                ),
                name="AMSGrad(paper, schedule, float32 moments)",
            ),
            row(eqopt.AMSGrad, at=0.01, learning_rate=0.1, b1=0.5, eps=1e-3),
        ],
        cases={
            "amsgrad": same(0.1),
            "amsgrad, paper": same(
                LINEARS, 0.7, 0.8, bias_correction_mu=False, bias_correction_nu=False
            ),
            "amsgrad, other": same(
                COSINES, 0.5, 0.9, 1e-2, 1e-3, mu_dtype=jnp.float32, converts=True
            ),
        },
    ),
]
