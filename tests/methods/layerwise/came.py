"""CAME: Adafactor with momentum, and with larger steps where that is reliable."""

import numpy as np
import optax

import eqopt

from ...laws.row import OF_LEAVES, row
from ...parity.by_hand import B1, B2, EPS
from ...parity.case import ByHand, is_matrix
from ..method import Method


B3, EPS_CONFIDENCE, D = 0.7, 1e-4, 0.8


def came_by_hand(grads):
    """The authors' algorithm with all its details, for the last two axes."""

    def inverse_root(rows, columns):
        rows = rows / rows.mean(-1, keepdims=True)
        return rows[..., :, None] ** -0.5 * columns[..., None, :] ** -0.5

    m = r = c = rr = cc = 0
    for g in grads:
        square = g**2 + EPS
        r = B2 * r + (1 - B2) * square.mean(-1)
        c = B2 * c + (1 - B2) * square.mean(-2)
        u = g * inverse_root(r, c)
        u = u / max(1, np.linalg.norm(u) / np.sqrt(u.size) / D)
        m = B1 * m + (1 - B1) * u
        residual = (u - m) ** 2 + EPS_CONFIDENCE
        rr = B3 * rr + (1 - B3) * residual.mean(-1)
        cc = B3 * cc + (1 - B3) * residual.mean(-2)
        yield m * inverse_root(rr, cc)


def came_by_hand_of_vectors(grads):
    m = v = 0
    for g in grads:
        v = B2 * v + (1 - B2) * (g**2 + EPS)
        u = g / np.sqrt(v)
        m = B1 * m + (1 - B1) * u / max(1, np.sqrt(np.mean(u**2)) / D)
        yield m


SCALE = eqopt.ScaleByCAME(B1, B2, B3, EPS, EPS_CONFIDENCE, D)

METHODS = [
    Method(
        eqopt.CAME,
        idea="Adafactor with momentum, scaled by how stable it is",
        theirs=lambda rate: optax.adafactor(rate, momentum=0.9),
        deviates="Optax has no CAME; beside it is its Adafactor with momentum",
        nearest="Adafactor",
        default_rate=0.0002,
        rates=(0.0032, 0.01, 0.001, 0.0001),
        ratio=None,
        laws=[
            row(
                eqopt.ScaleByCAME,
                exempt=OF_LEAVES,
                b1=0.8,
                b2=0.9,
                b3=0.7,
                eps=1e-3,
                eps_confidence=1e-2,
                clipping_threshold=0.5,
            ),
            row(
                lambda learning_rate=0.02, **data: eqopt.CAME(
                    learning_rate, clipping_threshold=None, mask=is_matrix, **data
                ),
                name="CAME(not clipped)",
                exempt={
                    "test_derivatives_are_exact": "the slope by `b3` is 24,000, and too "
                    "curved for differences"
                },
                learning_rate=0.1,
                weight_decay=0.3,
            ),
        ],
        by_hand={
            "came": ByHand(SCALE, came_by_hand, (6, 4)),
            "came, vector": ByHand(SCALE, came_by_hand_of_vectors),
        },
    ),
]
