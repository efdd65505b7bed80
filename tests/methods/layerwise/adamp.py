"""AdamP: Adam without steps along weights whose norm has no effect."""

import functools

import numpy as np

import eqopt

from ...laws.row import LINEAR, is_matrix, row
from ...parity.by_hand import B1, B2, EPS
from ...parity.case import ByHand
from ...parity.moving import DECAY, RATE, Moving, start
from ..method import Method


RATIO = 0.25


def projected(d, g, p, delta):
    """The projected step, and the ratio of the decay: by columns, then as a whole."""
    for axis in (0, None):
        dot = functools.partial(np.sum, axis=axis, keepdims=True)
        p_norm, g_norm = np.sqrt(dot(p * p)), np.sqrt(dot(g * g))
        cosines = np.abs(dot(p * g)) / (p_norm * g_norm)
        width = p.size / cosines.size
        if np.max(cosines) < delta / np.sqrt(width):
            unit = p / (p_norm + EPS)
            return d - unit * dot(unit * d), RATIO
    return d, 1


def adamp_by_hand(delta, nesterov, grads):
    m, v, p = 0, 0, start(grads[0].shape)
    for t, g in enumerate(grads, 1):
        m = B1 * m + (1 - B1) * g
        v = B2 * v + (1 - B2) * g**2
        ahead = B1 * m + (1 - B1) * g if nesterov else m
        d = ahead / (np.sqrt(v) / np.sqrt(1 - B2**t) + EPS)
        d, ratio = projected(d, g, p, delta)
        new = p * (1 - RATE * DECAY * ratio) - RATE / (1 - B1**t) * d
        yield new - p
        p = new


def by_hand(delta, nesterov=False, shape=(5, 3)):
    opt = eqopt.AdamP(
        RATE, B1, B2, EPS, delta, RATIO, nesterov=nesterov, weight_decay=DECAY
    )
    updates = functools.partial(adamp_by_hand, delta, nesterov)
    return ByHand(Moving(opt), updates, shape)


METHODS = [
    Method(
        eqopt.AdamP,
        idea="Adam without steps along weights whose norm has no effect",
        nearest="AdamW",
        rates=(0.0032, 0.01, 0.0032, 0.001),
        laws=[
            row(
                eqopt.ScaleByAdamP,
                b1=0.8,
                b2=0.9,
                eps=1e-3,
                delta=0.5,
                wd_ratio=0.3,
                weight_decay=0.2,
            ),
            row(
                lambda learning_rate=0.01, **data: eqopt.AdamP(
                    learning_rate,
                    nesterov=True,
                    delta=9.0,
                    weight_decay=LINEAR,
                    mask=is_matrix,
                    **data,
                ),
                name="AdamP",
                learning_rate=0.1,
                b1=0.5,
            ),
        ],
        by_hand={
            # The cosines are such that each of the branches is taken in some steps.
            "adamp": by_hand(1.2),
            "adamp, Nesterov, wide": by_hand(1.0, nesterov=True, shape=(3, 4)),
        },
    ),
]
