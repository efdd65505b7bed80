"""AdaBelief: steps are long where gradients are as expected."""

import numpy as np
import optax

import eqopt

from ...laws.row import row
from ...parity.by_hand import B1, B2, EPS, EPS_ROOT, means
from ...parity.case import COSINES, LINEARS, ByHand, Case, is_matrix
from ..method import Method


def belief_by_hand(grads):
    s = 0
    for t, ((m, m_hat), g) in enumerate(zip(means(grads), grads, strict=True), 1):
        s = B2 * s + (1 - B2) * (g - m) ** 2 + EPS_ROOT
        yield m_hat / (np.sqrt(s / (1 - B2**t)) + EPS)


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
            "adabelief": Case(
                eqopt.AdaBelief(0.1), optax.adabelief(0.1), converts=True
            ),
            "adabelief, other": Case(
                eqopt.AdaBelief(COSINES[0], 0.5, 0.9, 1e-3, 1e-4),
                optax.adabelief(COSINES[1], 0.5, 0.9, 1e-3, 1e-4),
            ),
            "adabelief, nesterov": Case(
                eqopt.AdaBelief(0.1, b1=0.8, nesterov=True),
                optax.adabelief(0.1, b1=0.8, nesterov=True),
            ),
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
        by_hand={
            "adabelief": ByHand(
                eqopt.ScaleByBelief(B1, B2, EPS, EPS_ROOT), belief_by_hand
            ),
        },
    ),
]
