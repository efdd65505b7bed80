"""Yogi: Adam whose second moment moves by no more than the gradient's square."""

import numpy as np
import optax

import eqopt

from ...laws.row import row
from ...parity.by_hand import B1, B2, EPS, EPS_ROOT, means
from ...parity.case import ByHand, both
from ..method import Method, same


def yogi_by_hand(grads, start=0.1):
    v = np.full(4, start)
    for t, ((_, m_hat), g) in enumerate(zip(means(grads), grads, strict=True), 1):
        v = v + (1 - B2) * np.sign(g**2 - v) * g**2
        yield m_hat / (np.sqrt(v / (1 - B2**t) + EPS_ROOT) + EPS)


METHODS = [
    Method(
        eqopt.Yogi,
        idea="Adam whose second moment moves slowly",
        in_optax="yogi",
        default_rate=0.01,
        rates=(0.01, 0.01, 0.0032, 0.001),
        laws=[
            row(
                eqopt.ScaleByYogi,
                b1=0.8,
                b2=0.9,
                eps=1e-2,
                eps_root=1e-3,
                initial_accumulator_value=1e-3,
            ),
            row(
                eqopt.Yogi,
                at=0.01,
                learning_rate=0.1,
                b1=0.5,
                initial_accumulator_value=1e-3,
            ),
        ],
        cases={
            # Optax's first moment starts at 1e-6, ours at zero.
            "yogi": same(0.1, rtol=5e-4, converts=True),
            "yogi, other": both(
                eqopt.ScaleByYogi, optax.scale_by_yogi, 0.5, 0.8, 1e-2, 1e-3, 0.0
            ),
        },
        by_hand={
            "yogi": ByHand(eqopt.ScaleByYogi(B1, B2, EPS, EPS_ROOT, 0.1), yogi_by_hand),
        },
    ),
]
