"""Aurora: orthogonal steps with rows of one length."""

import functools

import numpy as np

import eqopt

from ...laws.row import LINEAR, is_matrix, row
from ...parity.by_hand import B1
from ...parity.case import ByHand
from ...parity.matrices import NUMBERS, newton_schulz
from ..method import Method


ACCURATE = ((2.0, -1.5, 0.5),) * 12


def balanced(x, iterations, power, rows, eps):
    """The direction for a tall matrix."""
    (m, n), u = x.shape, x
    d = 1 / np.maximum(np.linalg.norm(x, axis=1), eps)
    for _ in range(iterations):
        u = newton_schulz(d[:, None] * x, rows)
        norms = np.maximum(np.linalg.norm(u, axis=1), eps)
        d = d * (n / m / norms**2) ** power
    return u


def aurora_by_hand(
    grads, b1=B1, iterations=3, power=0.7, rows=ACCURATE, eps=1e-7, nesterov=True
):
    mu = 0
    for g in grads:
        mu = b1 * mu + (1 - b1) * g
        x, (m, n) = (1 - b1) * g + b1 * mu if nesterov else mu, g.shape
        if m == n:
            u = newton_schulz(x, rows)
        else:
            tall = balanced(x if m > n else x.T, iterations, power, rows, eps)
            u = tall if m > n else tall.T
        yield u * np.sqrt(max(1, m / n))


def scale_by_aurora(**options):
    return eqopt.ScaleByAurora(
        beta=B1,
        pp_iterations=3,
        pp_beta=0.7,
        weight_dimension_numbers=NUMBERS,
        **options,
    )


# Some norms of rows are below this `eps`, of the momentum and of orthogonal matrices.
SHORT_ROWS = {"eps": 0.6, "nesterov": False}


METHODS = [
    Method(
        eqopt.Aurora,
        idea="orthogonal steps with rows of one length",
        nearest="Muon",
        default_rate=0.05,
        rates=(0.0032, 0.001, 0.001, 0.0032),
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
            **{
                f"aurora, {name}": ByHand(scale_by_aurora(), aurora_by_hand, shape)
                for name, shape in {
                    "tall": (6, 4),
                    "wide": (3, 5),
                    "square": (4, 4),
                }.items()
            },
            "aurora, short rows, without Nesterov": ByHand(
                scale_by_aurora(steps=3, **SHORT_ROWS),
                functools.partial(aurora_by_hand, rows=ACCURATE[:3], **SHORT_ROWS),
                (6, 4),
            ),
        },
    ),
]
