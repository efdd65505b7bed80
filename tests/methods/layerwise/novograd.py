"""NovoGrad: one second moment for each layer."""

import optax

import eqopt

from ...laws.row import LINEAR, row
from ...parity.case import LINEARS, downhill, is_matrix
from ..method import Method, same


METHODS = [
    Method(
        eqopt.NovoGrad,
        idea="one second moment per layer",
        in_optax="novograd",
        default_rate=0.01,
        rates=(0.001, 0.0001, 0.001, 0.0032),
        laws=[
            row(
                eqopt.ScaleByNovoGrad,
                b1=0.5,
                b2=0.8,
                eps=1e-3,
                eps_root=1e-3,
                weight_decay=0.3,
            ),
            row(
                eqopt.NovoGrad,
                at=0.1,
                learning_rate=0.02,
                b1=0.5,
                b2=0.8,
                weight_decay=0.3,
            ),
            row(
                lambda: eqopt.NovoGrad(LINEAR, weight_decay=LINEAR, mask=is_matrix),
                name="NovoGrad(schedules, mask)",
            ),
        ],
        cases={
            "novograd": same(0.1, converts=True),
            "novograd, other": same(LINEARS, 0.5, 0.8, 1e-2, 1e-3, 0.3),
            "novograd, alone": downhill(
                eqopt.ScaleByNovoGrad(0.8, 0.9, weight_decay=0.1),
                optax.scale_by_novograd(0.8, 0.9, weight_decay=0.1),
            ),
        },
    ),
]
