"""Muown: Muon turns the rows of a matrix, and Adam changes their norms."""

import numpy as np

import eqopt

from ...laws.row import LINEAR, row
from ...parity.matrices import TABLES, newton_schulz
from ..method import Method
from .normuon import match_rms


def norms(x):
    return np.linalg.norm(x, axis=1, keepdims=True)


def muown_by_hand(
    w,
    grads,
    rate,
    beta=0.95,
    b1=0.9,
    b2=0.95,
    eps=1e-8,
    decay=0.0,
    nesterov=True,
    scale=match_rms,
    rows=TABLES["standard"][0],
):
    """The parameters after each step, for a function `rate` of the steps so far.

    As in the authors' code, which keeps the gains, and does not average momentum.
    """
    gain, length = norms(w), norms(w)
    momentum = m = v = 0.0
    for t, g in enumerate(grads, 1):
        u, eta = w / gain, rate(t - 1)
        of_gain = np.sum(g * u, axis=1, keepdims=True)
        of_rows = gain / length * (g - u * of_gain)
        momentum = beta * momentum + of_rows
        update = of_rows + beta * momentum if nesterov else momentum
        new = length * u - eta * scale(*w.shape) * newton_schulz(update, rows)
        m = b1 * m + (1 - b1) * of_gain
        v = b2 * v + (1 - b2) * of_gain**2
        adam = m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + eps)
        gain, length = (1 - eta * decay) * gain - eta * adam, norms(new)
        w = gain * new / length
        yield w


METHODS = [
    Method(
        eqopt.Muown,
        idea="orthogonal steps for the directions of rows, Adam for their norms",
        nearest="Muon",
        default_rate=1e-3,
        rates=(0.0032, 0.001, 0.001, 0.0032),
        laws=[
            row(
                eqopt.ScaleByMuown,
                at=0.01,
                learning_rate=0.1,
                beta=0.8,
                b1=0.7,
                b2=0.8,
                eps=1e-3,
                weight_decay=0.3,
            ),
            row(eqopt.Muown, at=0.01, learning_rate=0.1, beta=0.8, weight_decay=0.3),
            row(
                lambda: eqopt.Muown(
                    LINEAR,
                    "deepseek",
                    nesterov=False,
                    scale="shape",
                    mu_dtype="float32",
                    fallback=eqopt.SGD(0.1),
                ),
                name="Muown(schedule, fallback)",
            ),
        ],
    ),
]
