"""Aurora: orthogonal steps with rows of one length."""

import numpy as np
import optax

import eqopt

from ...laws.row import LINEAR, is_matrix, row
from ...parity.by_hand import B1
from ...parity.case import ByHand
from ...parity.matrices import NUMBERS, newton_schulz
from ..method import Method


ACCURATE = ((2.0, -1.5, 0.5),) * 12


def balanced(x, iterations, power):
    """Of a tall matrix."""
    (m, n), u = x.shape, x
    d = 1 / np.linalg.norm(x, axis=1)
    for _ in range(iterations):
        u = newton_schulz(d[:, None] * x, ACCURATE)
        d = d * (n / m / np.sum(u**2, 1)) ** power
    return u


def aurora_by_hand(grads, b1=B1, iterations=3, power=0.7):
    mu = 0
    for g in grads:
        mu = b1 * mu + (1 - b1) * g
        x, (m, n) = (1 - b1) * g + b1 * mu, g.shape
        if m == n:
            u = newton_schulz(x, ACCURATE)
        else:
            tall = balanced(x if m > n else x.T, iterations, power)
            u = tall if m > n else tall.T
        yield u * np.sqrt(max(1, m / n))


def scale_by_aurora():
    return eqopt.ScaleByAurora(
        beta=B1, pp_iterations=3, pp_beta=0.7, weight_dimension_numbers=NUMBERS
    )


METHODS = [
    Method(
        eqopt.Aurora,
        idea="orthogonal steps with rows of one length",
        theirs=lambda rate: optax.contrib.muon(rate),
        deviates="Optax has no Aurora; beside it is its Muon",
        default_rate=0.05,
        rates=(0.0032, 0.001, 0.001, 0.0032),
        temporary=None,
        ratio=None,
        laws=[
            row(eqopt.ScaleByAurora, beta=0.8, pp_beta=0.3, eps=1e-3),
            row(
                lambda learning_rate=LINEAR, **data: eqopt.Aurora(
                    learning_rate,
                    pp_iterations=1,
                    mask=is_matrix,
                    nesterov=False,
                    mu_dtype="float32",
                    **data,
                ),
                name="Aurora",
                learning_rate=0.1,
                weight_decay=0.3,
            ),
        ],
        by_hand={
            f"aurora, {name}": ByHand(scale_by_aurora(), aurora_by_hand, shape)
            for name, shape in {
                "tall": (6, 4),
                "wide": (3, 5),
                "square": (4, 4),
            }.items()
        },
    ),
]
