"""NorMuon: orthogonal steps, in which each row has its own length."""

import functools

import numpy as np

import eqopt

from ...laws.row import LINEAR, is_matrix, row
from ...parity.by_hand import B1, B2, EPS
from ...parity.case import ByHand
from ...parity.matrices import NUMBERS, TABLES, newton_schulz
from ..method import Method


STANDARD = TABLES["standard"][0]


def shape_scale(m, n):
    return np.sqrt(max(1, m / n))


def match_rms(m, n):
    return 0.2 * np.sqrt(max(m, n))


def normuon_by_hand(
    grads,
    b1=B1,
    b2=B2,
    coefficients=STANDARD,
    of_long_side=False,
    eps=1e-10,
    scale=shape_scale,
):
    m = v = 0
    for g in grads:
        m = b1 * m + (1 - b1) * g
        o = newton_schulz((1 - b1) * g + b1 * m, coefficients)
        axis = 0 if of_long_side and g.shape[1] > g.shape[0] else 1
        v = b2 * v + (1 - b2) * np.mean(o**2, axis, keepdims=True)
        u = o / (np.sqrt(v) + eps)
        u = u * np.linalg.norm(o) / (np.linalg.norm(u) + eps)
        yield u * scale(*g.shape)


def row_rms_by_hand(axis):
    def updates(grads):
        v = 0
        for g in grads:
            v = B2 * v + (1 - B2) * np.mean(g**2, axis, keepdims=True)
            u = g / (np.sqrt(v) + EPS)
            yield u * np.linalg.norm(g) / (np.linalg.norm(u) + EPS)

    return updates


def row_rms(side, shape, axis):
    opt = eqopt.ScaleByRowRMS(B2, EPS, side, weight_dimension_numbers=NUMBERS)
    return ByHand(opt, row_rms_by_hand(axis), shape)


def normalized_by_hand(grads):
    """MuonEq before, Muon+ after."""
    for g in grads:
        norms = np.linalg.norm(g, axis=1, keepdims=True)
        o = newton_schulz(np.linalg.norm(g) / np.sqrt(len(g)) * g / norms, STANDARD)
        yield np.sqrt(min(g.shape)) * o / np.linalg.norm(o)


def scale_by_normuon(b2=B2, **options):
    return eqopt.ScaleByNorMuon(
        beta=B1, b2=b2, weight_dimension_numbers=NUMBERS, **options
    )


# Far from the defaults.
OTHER = {"b2": 0.9, "eps": EPS}

METHODS = [
    Method(
        eqopt.NorMuon,
        idea="orthogonal steps with a separate length for each row",
        nearest="Muon",
        default_rate=0.02,
        rates=(0.0032, 0.001, 0.001, 0.0032),
        laws=[
            row(eqopt.Orthogonalize, eps=1e-3),
            row(
                lambda: eqopt.Orthogonalize(
                    "polar_express", gram=True, scale="unit_rms"
                ),
                name="Orthogonalize(Polar Express, Gram)",
            ),
            row(
                lambda: eqopt.Orthogonalize(row_normalize=True, renormalize=True),
                name="Orthogonalize(normalised)",
            ),
            row(eqopt.ScaleByNorMuon, beta=0.8, b2=0.9, eps=1e-3),
            row(eqopt.ScaleByRowRMS, b2=0.9, eps=1e-3),
            row(eqopt.ScaleByRowRMS, {"side": "long"}, name="ScaleByRowRMS(long side)"),
            row(
                lambda: eqopt.ScaleByNorMuon(
                    "cans", side="long", nesterov=False, mu_dtype="float32"
                ),
                name="ScaleByNorMuon(long side)",
            ),
            row(eqopt.NorMuon, at=0.01, learning_rate=0.1, beta=0.8, weight_decay=0.3),
            row(
                lambda: eqopt.NorMuon(
                    LINEAR, weight_decay=LINEAR, mask=is_matrix, fallback=eqopt.SGD(0.1)
                ),
                name="NorMuon(schedules, mask, fallback)",
            ),
        ],
        by_hand={
            "normuon, tall": ByHand(scale_by_normuon(), normuon_by_hand, (6, 4)),
            "normuon, wide": ByHand(scale_by_normuon(), normuon_by_hand, (3, 5)),
            "normuon, long side": ByHand(
                scale_by_normuon(steps=3, side="long", scale="match_rms", **OTHER),
                functools.partial(
                    normuon_by_hand,
                    coefficients=STANDARD[:3],
                    of_long_side=True,
                    scale=match_rms,
                    **OTHER,
                ),
                (3, 5),
            ),
            "normuon, ScaleByRowRMS, wide": row_rms("rows", (3, 5), 1),
            "normuon, ScaleByRowRMS, long side, wide": row_rms("long", (3, 5), 0),
            "normuon, ScaleByRowRMS, long side, tall": row_rms("long", (6, 4), 1),
            "orthogonalize, normalised": ByHand(
                eqopt.Orthogonalize(
                    row_normalize=True,
                    renormalize=True,
                    weight_dimension_numbers=NUMBERS,
                ),
                normalized_by_hand,
                (6, 4),
            ),
        },
    ),
]
