"""AdaBelief: steps are long where gradients are as expected."""

import optax

import eqopt

from ...laws.row import row
from ...parity.case import COSINES, LINEARS, Case, is_matrix
from ..method import Method, same


METHODS = [
    Method(
        eqopt.AdaBelief,
        idea="Adam with the variance instead of the mean square",
        in_optax="adabelief",
        rates=(0.001, 0.01, 0.001, 0.00032),
        laws=[
            row(eqopt.ScaleByBelief, b1=0.8, b2=0.9, eps=1e-3, eps_root=1e-3),
            row(
                lambda: eqopt.ScaleByBelief(nesterov=True),
                name="ScaleByBelief(nesterov)",
            ),
            row(eqopt.AdaBelief, at=0.01, learning_rate=0.1, b1=0.5, weight_decay=0.3),
        ],
        cases={
            "adabelief": same(0.1, converts=True),
            "adabelief, other": same(COSINES, 0.5, 0.9, 1e-3, 1e-4),
            "adabelief, nesterov": same(0.1, b1=0.8, nesterov=True),
            "adabelief, decay": Case(
                eqopt.AdaBelief(LINEARS[0], weight_decay=0.3, mask=is_matrix),
                # The released Optax has none yet.
                optax.chain(
                    optax.scale_by_belief(),
                    optax.add_decayed_weights(0.3, is_matrix),
                    optax.scale_by_learning_rate(LINEARS[1]),
                ),
            ),
        },
    ),
]
