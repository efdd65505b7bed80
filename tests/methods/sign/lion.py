"""Lion: the sign of an interpolated momentum."""

import optax

import eqopt

from ...laws.row import row
from ...parity.case import LINEARS, Case, both, is_matrix
from ..method import Method, same


METHODS = [
    Method(
        eqopt.Lion,
        idea="the sign of two interpolated momenta",
        in_optax="lion",
        default_rate=0.0003,
        rates=(0.0032, 0.001, 0.001, 0.001),
        laws=[
            row(eqopt.ScaleByLion, b1=0.8, b2=0.9),
            row(lambda: eqopt.ScaleByLion(mode="smooth"), name="ScaleByLion(smooth)"),
            row(lambda: eqopt.ScaleByLion(mode="refined"), name="ScaleByLion(refined)"),
            row(
                eqopt.Lion, at=0.01, learning_rate=0.1, b1=0.5, b2=0.7, weight_decay=0.3
            ),
        ],
        cases={
            "lion": same(0.1, converts=True),
            "lion, other": same(LINEARS, 0.5, 0.3, weight_decay=0.1, mask=is_matrix),
            "lion, smooth": Case(
                eqopt.ScaleByLion(0.8, 0.9, mode="smooth", smooth_beta=3.0),
                optax.scale_by_lion(0.8, 0.9, mode="smooth", smooth_beta=3.0),
            ),
            "lion, refined": both(
                eqopt.ScaleByLion, optax.scale_by_lion, 0.8, 0.9, mode="refined"
            ),
        },
    ),
]
