"""RAdam: Adam that waits until it knows enough of the second moment."""

import numpy as np
import optax

import eqopt

from ...laws.row import LINEAR, row
from ...parity.by_hand import B1, B2, EPS, EPS_ROOT, means, rectifier
from ...parity.case import COSINES, LINEARS, ByHand, Case, TorchCase
from ..method import Method


def radam_by_hand(grads):
    v = 0
    for t, ((_, m_hat), g) in enumerate(zip(means(grads), grads, strict=True), 1):
        v, r = B2 * v + (1 - B2) * g**2, rectifier(t)
        root = np.sqrt(v / (1 - B2**t) + EPS_ROOT) + EPS
        yield r * m_hat / root if r else m_hat


METHODS = [
    Method(
        eqopt.RAdam,
        idea="Adam that warms up by itself",
        in_optax="radam",
        rates=(0.01, 0.0032, 0.01, 0.0032),
        laws=[
            # A `threshold` of 4 needs four steps, of which most laws take fewer.
            row(
                eqopt.ScaleByRAdam,
                b1=0.8,
                b2=0.9,
                eps=1e-3,
                eps_root=1e-3,
                threshold=20.0,
            ),
            row(
                lambda: eqopt.RAdam(LINEAR, b2=0.9, threshold=4, nesterov=True),
                name="RAdam(nesterov)",
            ),
            row(eqopt.RAdam, at=0.01, learning_rate=0.1, b1=0.5),
        ],
        cases={
            "radam": Case(
                eqopt.RAdam(0.1),
                optax.radam(0.1),
                rtol=1e-2,  # Optax's rectifier has lost all but two digits in step 6
                converts=True,
            ),
            "radam, near": Case(eqopt.RAdam(0.1, b2=0.9), optax.radam(0.1, b2=0.9)),
            "radam, other": Case(
                eqopt.RAdam(COSINES[0], 0.5, 0.9, 1e-2, 1e-3, 4.0),
                optax.radam(COSINES[1], 0.5, 0.9, 1e-2, 1e-3, 4.0),
            ),
            "radam, nesterov": Case(
                eqopt.RAdam(LINEARS[0], b2=0.95, nesterov=True),
                optax.radam(LINEARS[1], b2=0.95, nesterov=True),
            ),
            "radam, never": Case(eqopt.RAdam(0.1, b2=0.5), optax.radam(0.1, b2=0.5)),
        },
        torch={
            # The epsilons differ: see `eqopt.RAdam`.
            "radam": TorchCase(
                eqopt.RAdam(0.1, eps=0.0), "RAdam", {"lr": 0.1, "eps": 0.0}
            ),
            "radam, other": TorchCase(
                eqopt.RAdam(0.1, 0.5, 0.9, 0.0),
                "RAdam",
                {"lr": 0.1, "betas": (0.5, 0.9), "eps": 0.0},
            ),
        },
        by_hand={
            "radam": ByHand(eqopt.ScaleByRAdam(B1, B2, EPS, EPS_ROOT), radam_by_hand),
        },
    ),
]
