"""PSGD-Kron, in its form without inverses."""

import numpy as np
import optax

import eqopt

from ...laws.row import IN_TURNS, row
from ...parity.by_hand import B1
from ...parity.case import ByHand
from ...parity.matrices import NUMBERS
from ..method import Method


RATE, DAMPING, MAX_RMS, MAX_ABS = 0.3, 0.2, 0.7, 1.5


def norm(x):
    y = max(x.T, key=np.linalg.norm)
    for _ in range(2):
        y = x @ y / (np.linalg.norm(y) or 1)
    return np.linalg.norm(y)


def rotated(q):
    r = q.T - q
    r = r / (norm(r) or 1)
    curvature = np.trace(r @ r @ q)
    a = min(-np.trace(r @ q) / curvature, 1 / 8) if curvature < 0 else 1 / 8
    return q + a * (r @ q + 0.5 * a * r @ r @ q)


def psgd_by_hand(
    grads,
    is_diagonal=(False, False),
    of_momentum=False,
    b1=B1,
    rate=RATE,
    damping=DAMPING,
    max_rms=MAX_RMS,
    max_abs=MAX_ABS,
):
    m, lipschitz, qs = 0, [0, 0], []
    for t, g in enumerate(grads, 1):
        m = b1 * m + (1 - b1) * g
        seen = m / (1 - b1**t) if of_momentum else g
        if t == 1:
            size = np.mean(seen**4) ** (1 / 4)
            qs = [size ** (-1 / 4) * np.eye(n) for n in g.shape]
        left, right = (q.T @ q for q in qs)
        w = left @ seen @ right
        terms = (
            w @ w.T + damping**2 * np.linalg.norm(right) ** 2 * left @ left,
            w.T @ w + damping**2 * np.linalg.norm(left) ** 2 * right @ right,
        )
        for i in range(2):
            term1, term2 = terms[i], g.shape[1 - i]
            if is_diagonal[i]:
                term1 = np.diag(np.diag(term1))
            bound = (np.max(term1) if is_diagonal[i] else norm(term1)) + term2
            lipschitz[i] = max(0.9 * lipschitz[i] + 0.1 * bound, bound)
            q = qs[i] - rate / lipschitz[i] * (term1 @ qs[i] - term2 * qs[i])
            qs[i] = rotated(q)
        u = qs[0].T @ qs[0] @ (m / (1 - b1**t)) @ qs[1].T @ qs[1]
        u = u * min(max_rms / np.sqrt(np.mean(u**2)), 1)
        yield np.clip(u, -max_abs, max_abs)


def by_hand(shape, of_momentum=False, **options):
    opt = eqopt.ScaleByPSGDKron(
        B1,
        RATE,
        DAMPING,
        MAX_RMS,
        MAX_ABS,
        whiten_momentum=of_momentum,
        weight_dimension_numbers=NUMBERS,
        **options,
    )
    longest = np.inf if "max_skew" in options else min(shape)
    longest = min(longest, options.get("max_size", np.inf))
    is_diagonal = [n > longest for n in shape]
    updates = lambda grads: psgd_by_hand(grads, is_diagonal, of_momentum)
    return ByHand(opt, updates, shape)


DIAGONALS = {
    "test_state_is_sharded_like_parameters": "a factor is whole, even if it is diagonal"
}


METHODS = [
    Method(
        eqopt.PSGDKron,
        idea="a preconditioner of two factors, fitted to whiten the gradients",
        theirs=lambda rate: optax.adamw(rate, weight_decay=0.0),
        nearest="AdamW",
        rates=(0.0032, 0.001, 0.001, 0.001),
        ratio=None,
        laws=[
            row(
                eqopt.ScaleByPSGDKron,
                b1=0.8,
                preconditioner_lr=0.3,
                damping=0.1,
                max_rms=0.5,
                max_abs=0.8,
                exempt=DIAGONALS,
            ),
            row(
                lambda damping=0.0: eqopt.ScaleByPSGDKron(
                    damping=damping,
                    precondition_frequency=2,
                    whiten_momentum=True,
                    max_skew=10,
                    stagger=True,
                ),
                name="ScaleByPSGDKron(full factors, staggered)",
                exempt=IN_TURNS,
                damping=0.1,
            ),
            row(
                eqopt.PSGDKron,
                at=0.01,
                learning_rate=0.1,
                b1=0.5,
                weight_decay=0.3,
                exempt=DIAGONALS,
            ),
        ],
        by_hand={
            "PSGD-Kron": by_hand((4, 4)),
            "PSGD-Kron, diagonal side, wide": by_hand((3, 5)),
            "PSGD-Kron, diagonal side, tall": by_hand((5, 3)),
            "PSGD-Kron, diagonal sides": by_hand((4, 4), max_size=2),
            "PSGD-Kron, momentum, tall": by_hand((5, 3), True, max_skew=None),
        },
    ),
]
