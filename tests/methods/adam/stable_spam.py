"""Stable-SPAM: Adam with gradients without spikes, whose moments are reset."""

import numpy as np
import optax

import eqopt

from ...laws.row import is_matrix, row
from ...parity.by_hand import B1, B2, EPS
from ...parity.case import ByHand
from ...parity.moving import DECAY, RATE, with_decay
from ..method import Method


G1, G2, G3, LOW = 0.6, 0.7, 0.9, 0.25


def cosine(t, total):
    return LOW + (1 - LOW) * (1 + np.cos(np.pi * min(t / (total + 1), 1))) / 2


def ada_clip_gn_by_hand(grads, total):
    tau = a = b = 0
    for t, g in enumerate(grads, 1):
        g1 = G1 * cosine(t, total)
        tau = G3 * tau + (1 - G3) * np.max(np.abs(g))
        limit = tau / (1 - G3**t)
        g = np.where(np.abs(g) > limit, g / np.max(np.abs(g)) * limit, g)
        norm = np.linalg.norm(g)
        a = g1 * a + (1 - g1) * norm
        b = G2 * b + (1 - G2) * norm**2
        yield g / norm * a / (1 - g1**t) / (np.sqrt(b / (1 - G2**t)) + EPS)


def adam_by_hand(grads, every, total):
    """With resets in steps 5, 10, ... if `every` is 5."""
    m = v = t = 0
    for step, g in enumerate(grads, 1):
        if step % every == 0:
            m = v = t = 0
        t, b1 = t + 1, B1 * cosine(step, total)
        m = b1 * m + (1 - b1) * g
        v = B2 * v + (1 - B2) * g**2
        yield m / (1 - b1**t) / (np.sqrt(v / (1 - B2**t)) + EPS)


METHODS = [
    Method(
        eqopt.StableSPAM,
        idea="Adam with gradient spikes removed, and with resets",
        theirs=lambda rate: optax.adamw(rate, weight_decay=0.0),
        nearest="AdamW",
        rates=(0.0032, 0.001, 0.001, 0.001),
        ratio=None,
        laws=[
            row(
                lambda **data: eqopt.ScaleByAdamWithReset(
                    **{"reset_every": 2, "total_steps": 3, **data}
                ),
                name="ScaleByAdamWithReset",
                b1=0.8,
                b2=0.9,
                eps=1e-3,
                eta_min=0.3,
            ),
            row(
                lambda learning_rate=0.02, **data: eqopt.StableSPAM(
                    learning_rate, total_steps=2, mask=is_matrix, **data
                ),
                name="StableSPAM",
                learning_rate=0.1,
                weight_decay=0.3,
            ),
        ],
        by_hand={
            "stable_spam, AdaClipGN": ByHand(
                eqopt.AdaClipGN(G1, G2, G3, EPS, 20, LOW),
                lambda grads: ada_clip_gn_by_hand(grads, 20),
            ),
            "stable_spam, ScaleByAdamWithReset": ByHand(
                eqopt.ScaleByAdamWithReset(B1, B2, EPS, 4, 6, LOW),
                lambda grads: adam_by_hand(grads, 4, 6),
            ),
            "stable_spam": with_decay(
                eqopt.StableSPAM(
                    RATE, B1, B2, EPS, G1, G2, G3, 5, 8, LOW, weight_decay=DECAY
                ),
                lambda grads: adam_by_hand(ada_clip_gn_by_hand(grads, 8), 5, 8),
            ),
        },
    ),
]
