"""Polyak's step size, from the value of the loss."""

import optax

import eqopt

from ...laws.row import LINEAR, Evaluated, evaluated, row
from ...parity.case import LINEARS
from ..method import Method, same
from .momo import LossCase, loss


METHODS = [
    Method(
        eqopt.PolyakSGD,
        idea="a step size computed from the loss",
        in_optax="polyak_sgd",
        default_rate=1.0,
        rates=(0.01, 0.001, 0.01, 0.1),
        laws=[
            row(
                evaluated(eqopt.ScaleByPolyak),
                name="ScaleByPolyak",
                f_min=0.5,
                max_learning_rate=0.3,
                eps=0.1,
            ),
            row(
                evaluated(eqopt.PolyakSGD),
                name="PolyakSGD",
                max_learning_rate=0.3,
                scaling=0.5,
                f_min=0.5,
                eps=0.1,
            ),
            row(
                lambda: Evaluated(
                    eqopt.PolyakSGD(float("inf"), LINEAR, variant="sps+")
                ),
                name="PolyakSGD(schedule, sps+, no cap)",
            ),
            row(
                lambda: Evaluated(eqopt.PolyakSGD(LINEAR)),
                name="PolyakSGD(scheduled cap)",
            ),
        ],
        cases={
            "polyak_sgd": same(extra=loss),
            "polyak_sgd, uphill": same(f_min=9.0, eps=0.1, extra=loss),
            # Always capped: below the cap Optax divides by what it should scale by.
            "polyak_sgd, schedule": same(0.01, LINEARS, variant="sps+", extra=loss),
            "polyak": LossCase(eqopt.ScaleByPolyak(), optax.scale_by_polyak()),
        },
    ),
]
