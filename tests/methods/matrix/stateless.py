"""SinkGD and SCALE: rows, or rows and columns, of one length."""

import functools

import numpy as np

import eqopt

from ...laws.row import LINEAR, is_matrix, row
from ...parity.by_hand import B1
from ...parity.case import ByHand
from ...parity.matrices import NUMBERS
from ..method import Method


def row_norm_by_hand(grads):
    for g in grads:
        yield g / np.maximum(np.sqrt(np.mean(g**2, 1, keepdims=True)), 0.9)


def sinkhorn_by_hand(grads):
    for g in grads:
        m, n = g.shape
        for _ in range(3):
            g = np.sqrt(n) * g / np.maximum(np.linalg.norm(g, axis=1)[:, None], 1.5)
            g = np.sqrt(m) * g / np.maximum(np.linalg.norm(g, axis=0)[None], 1.5)
        yield g


def spectral_by_hand(target):
    def updates(grads):
        v = None
        for x in sinkhorn_by_hand(grads):
            if v is None:
                v = x[np.argmax(np.sum(x**2, 1))]
            sigma = 0
            for _ in range(2):
                left = x @ v / np.linalg.norm(x @ v)
                v = left @ x
                sigma = np.linalg.norm(v)
                v = v / sigma
            yield target(*x.shape) / sigma * x

    return updates


def sinkgd_by_hand(grads, factor=1.0):
    """Updates of zero parameters, which do not decay, with a learning rate of 0.5."""
    for u in sinkhorn_by_hand(grads):
        yield -0.5 * 0.2 * factor * u


def scale_by_hand(grads):
    m = 0
    for g in grads:
        m = B1 * m + (1 - B1) * g
        yield -0.5 * m / np.sqrt(np.mean(m**2, 1, keepdims=True))


SINKHORN = {"steps": 3, "eps": 1.5, "weight_dimension_numbers": NUMBERS}
SINKGD = {"scale": 0.2, "fallback": eqopt.Identity(), **SINKHORN}
SCALE = {"weight_dimension_numbers": NUMBERS, "fallback": eqopt.Identity()}

METHODS = [
    Method(
        eqopt.SinkGD,
        idea="rows and columns of one length, without state",
        nearest="AdamW",
        default_rate=0.02,
        rates=(0.0032, 0.001, 0.001, 0.01),
        ratio=None,
        laws=[
            row(eqopt.ScaleBySinkhorn, {"steps": 2}, eps=1e-3),
            row(
                lambda eps=1e-8: eqopt.ScaleBySinkhorn(
                    2, eps, spectral_target="unit_rms", power_steps=2
                ),
                name="ScaleBySinkhorn(spectral target)",
                eps=1e-3,
            ),
            row(eqopt.SinkGD, at=0.01, learning_rate=0.1, scale=0.5, weight_decay=0.3),
            row(
                eqopt.SinkGD,
                {"spectral_target": "unit", "base_width": 4.0, "mask": is_matrix},
                at=LINEAR,
                name="SinkGD(width rule)",
                learning_rate=0.1,
                base_width=6.0,
                width_exponent=0.5,
            ),
        ],
        by_hand={
            "ScaleBySinkhorn": ByHand(
                eqopt.ScaleBySinkhorn(**SINKHORN), sinkhorn_by_hand, (6, 4)
            ),
            "sinkgd": ByHand(eqopt.SinkGD(0.5, **SINKGD), sinkgd_by_hand, (3, 5)),
            "sinkgd, width rule": ByHand(
                eqopt.SinkGD(0.5, base_width=9, width_exponent=1.5, **SINKGD),
                functools.partial(sinkgd_by_hand, factor=(9 / 4) ** 1.5),
                (6, 4),
            ),
            **{
                f"ScaleBySinkhorn, {name}": ByHand(
                    eqopt.ScaleBySinkhorn(
                        spectral_target=name, power_steps=2, **SINKHORN
                    ),
                    spectral_by_hand(target),
                    (3, 5),
                )
                for name, target in {
                    "unit": lambda m, n: 1,
                    "unit_rms": lambda m, n: np.sqrt(m / n),
                }.items()
            },
        },
    ),
    Method(
        eqopt.SCALE,
        idea="rows of one length; momentum only for the last layer",
        nearest="AdamW",
        rates=(0.0032, 0.001, 0.001, 0.001),
        ratio=None,
        laws=[
            row(eqopt.ScaleByRowNorm, eps=1e-3),
            row(
                lambda learning_rate=LINEAR, **data: eqopt.SCALE(
                    learning_rate, last_layer=is_matrix, mask=is_matrix, **data
                ),
                name="SCALE(last layer)",
                learning_rate=0.1,
                momentum=0.8,
                weight_decay=0.3,
            ),
        ],
        by_hand={
            "ScaleByRowNorm": ByHand(
                eqopt.ScaleByRowNorm(0.9, NUMBERS), row_norm_by_hand, (3, 5)
            ),
            "scale": ByHand(eqopt.SCALE(0.5, B1, True, **SCALE), scale_by_hand, (6, 4)),
        },
    ),
]
