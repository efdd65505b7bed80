"""Scion: steps of one size in a norm that fits the layer."""

import numpy as np

import eqopt

from ...laws.row import LINEAR, is_matrix, row
from ...parity.by_hand import B1, EPS
from ...parity.case import ByHand
from ...parity.matrices import NUMBERS, TABLES, newton_schulz
from ..method import Method


STANDARD = TABLES["standard"][0]


def spectral(d, inputs):
    return np.sqrt(d.shape[0] / inputs) * newton_schulz(d, STANDARD)


def spectral_at_least_one(d, inputs):
    """The polar factor after three steps, with a factor of at least one."""
    factor = max(1.0, np.sqrt(d.shape[0] / inputs))
    return factor * newton_schulz(d, STANDARD[:3])


def sign(d, inputs):
    return np.sign(d) / inputs


def rows(d, inputs):
    norms = np.linalg.norm(d, axis=1, keepdims=True)
    return d / (norms * np.sqrt(inputs) + EPS)


def columns(d, inputs):
    return d / (inputs * np.sqrt(np.mean(d**2, 0, keepdims=True)) + EPS)


def scion_by_hand(lmo, normalized=True):
    """If not `normalized`, inputs are one-hot, and count as a single input."""

    def updates(grads):
        d = 0
        for g in grads:
            d = B1 * d + (1 - B1) * g
            yield 3 * lmo(d, g.shape[1] if normalized else 1)

    return updates


def scale_by_lmo(norm, **options):
    return eqopt.ScaleByLMO(
        norm, 3.0, B1, EPS, weight_dimension_numbers=NUMBERS, **options
    )


METHODS = [
    Method(
        eqopt.Scion,
        idea="steps of one size, measured in a norm for each kind of layer",
        nearest="Muon",
        rates=(0.001, 0.001, 0.001, 0.0032),
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
            **{
                f"scion, {norm}{'' if normalized else ', one-hot'}": ByHand(
                    scale_by_lmo(norm, normalized=normalized),
                    scion_by_hand(lmo, normalized),
                    shape,
                )
                for norm, lmo, shape in (
                    ("spectral", spectral, (6, 4)),
                    ("sign", sign, (3, 5)),
                    ("row", rows, (3, 5)),
                    ("col", columns, (6, 4)),
                )
                for normalized in (True, False)
            },
            **{
                f"scion, spectral, at least one, {shape}": ByHand(
                    scale_by_lmo("spectral", at_least_one=True, steps=3),
                    scion_by_hand(spectral_at_least_one),
                    shape,
                )
                for shape in ((3, 6), (6, 4))
            },
        },
    ),
]
