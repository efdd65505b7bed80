"""Scion: steps of one size in a norm that fits the layer."""

import numpy as np
import optax

import eqopt

from ...laws.row import LINEAR, is_matrix, row
from ...parity.by_hand import B1, EPS
from ...parity.case import ByHand
from ...parity.matrices import NUMBERS, TABLES, newton_schulz
from ..method import Method


STANDARD = TABLES["standard"][0]


def spectral(d):
    return np.sqrt(d.shape[0] / d.shape[1]) * newton_schulz(d, STANDARD)


def spectral_at_least_one(d):
    factor = max(1.0, np.sqrt(d.shape[0] / d.shape[1]))
    return factor * newton_schulz(d, STANDARD)


def sign(d):
    return np.sign(d) / d.shape[1]


def rows(d):
    norms = np.linalg.norm(d, axis=1, keepdims=True)
    return d / (norms * np.sqrt(d.shape[1]) + EPS)


def columns(d):
    """Of one-hot inputs."""
    return d / (np.sqrt(np.mean(d**2, 0, keepdims=True)) + EPS)


def scion_by_hand(lmo):
    def updates(grads):
        d = 0
        for g in grads:
            d = B1 * d + (1 - B1) * g
            yield 3 * lmo(d)

    return updates


def scale_by_lmo(norm, **options):
    return eqopt.ScaleByLMO(
        norm, 3.0, B1, EPS, weight_dimension_numbers=NUMBERS, **options
    )


METHODS = [
    Method(
        eqopt.Scion,
        idea="steps of one size, measured in a norm for each kind of layer",
        theirs=lambda rate: optax.contrib.muon(rate),
        deviates="Optax has no Scion; beside it is its Muon",
        rates=(0.001, 0.001, 0.001, 0.0032),
        temporary=None,
        ratio=None,
        laws=[
            row(eqopt.ScaleByLMO, radius=2.0, beta=0.8, eps=1e-3),
            row(
                lambda radius=1.0, eps=1e-8: eqopt.ScaleByLMO(
                    "col", radius, eps=eps, normalized=False, mu_dtype="float32"
                ),
                name="ScaleByLMO(columns)",
                radius=2.0,
                eps=1e-3,
            ),
            row(
                lambda learning_rate=LINEAR, **data: eqopt.Scion(
                    learning_rate, mask=is_matrix, **data
                ),
                name="Scion",
                learning_rate=0.1,
                radius=2.0,
                weight_decay=0.3,
            ),
        ],
        by_hand={
            "scion, spectral": ByHand(
                scale_by_lmo("spectral"), scion_by_hand(spectral), (6, 4)
            ),
            "scion, spectral, at least one, wide": ByHand(
                scale_by_lmo("spectral", at_least_one=True),
                scion_by_hand(spectral_at_least_one),
                (3, 6),
            ),
            "scion, spectral, at least one, tall": ByHand(
                scale_by_lmo("spectral", at_least_one=True),
                scion_by_hand(spectral_at_least_one),
                (6, 4),
            ),
            "scion, sign": ByHand(scale_by_lmo("sign"), scion_by_hand(sign), (3, 5)),
            "scion, row": ByHand(scale_by_lmo("row"), scion_by_hand(rows), (3, 5)),
            "scion, col": ByHand(
                scale_by_lmo("col", normalized=False), scion_by_hand(columns), (6, 4)
            ),
        },
    ),
]
