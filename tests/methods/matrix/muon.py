"""Muon: orthogonal steps for matrices, another optimizer for all other parameters."""

import jax
import optax

import eqopt

from ...laws.row import LINEAR, row
from ...parity.case import COSINES, LINEARS, OF_TWO_AXES, Case, is_matrix
from ..method import Method, same


def by_axes(numbers):
    """The last two axes of two or more, in either library."""
    at = lambda p: numbers(p.ndim - 2, p.ndim - 1) if p.ndim >= 2 else None
    return lambda params: jax.tree.map(at, params)


MATRICES = {"weight_dimension_numbers": by_axes(eqopt.MatrixDimensionNumbers)}
THEIR_MATRICES = {
    "muon_weight_dimension_numbers": by_axes(optax.contrib.MuonDimensionNumbers)
}
OF_STACKS = {"ours": MATRICES, "theirs": THEIR_MATRICES}

# In these matrices small singular values are enlarged up to 500 times, and with them the
# rounding errors of the momentum.
ENLARGED = {"rtol": 5e-5}

THREE_STEPS = (4.0, -6.9, 2.9), (3.7, -5.6, 2.3), (2.9, -3.1, 1.2)


METHODS = [
    Method(
        eqopt.Muon,
        idea="orthogonal steps for matrices",
        in_optax="contrib.muon",
        # On the digits not the 0.01 of the grid: there rounding errors decide.
        default_rate=0.02,
        rates=(0.0032, 0.01, 0.0032, 0.005),
        laws=[
            row(eqopt.ScaleByMuon, beta=0.8, eps=1e-3),
            row(
                lambda: eqopt.ScaleByMuon(
                    "dion", nesterov=False, adaptive=True, preconditioning="spectral"
                ),
                name="ScaleByMuon(dion, adaptive, spectral)",
            ),
            row(
                lambda a=3.4445: eqopt.ScaleByMuon(
                    ((a, -4.775, 2.0315), (3.0, -4.0, 2.0)), preconditioning="aol"
                ),
                name="ScaleByMuon(rows, aol)",
                a=3.5,
            ),
            row(
                lambda: eqopt.ScaleByMuon(preconditioning="schatten"),
                name="ScaleByMuon(schatten)",
            ),
            row(
                eqopt.Muon,
                at=0.01,
                learning_rate=0.1,
                beta=0.8,
                eps=1e-3,
                weight_decay=0.3,
                consistent_rms=0.2,
            ),
            row(
                lambda: eqopt.Muon(
                    LINEAR,
                    weight_decay=0.1,
                    mask=is_matrix,
                    mu_dtype="float32",
                    fallback=eqopt.Chain(eqopt.ClipByGlobalNorm(1.0), eqopt.SGD(0.1)),
                ),
                name="Muon(fallback)",
            ),
        ],
        cases={
            "muon": same(0.1, ours=OF_TWO_AXES, **ENLARGED),
            "muon, stacks": same(COSINES, **OF_STACKS, **ENLARGED),
            "muon, other": same(
                LINEARS,
                THREE_STEPS,
                beta=0.8,
                eps=1e-3,
                weight_decay=0.3,
                nesterov=False,
                consistent_rms=0.2,
                ours={"mask": is_matrix, **MATRICES},
                theirs={"weight_decay_mask": is_matrix, **THEIR_MATRICES},
                **ENLARGED,
            ),
            # Optax's is always an AdamW, with the `nesterov` of Muon.
            "muon, fallback": Case(
                eqopt.Muon(
                    0.1,
                    fallback=eqopt.AdamW(
                        LINEARS[0], 0.5, 0.9, weight_decay=0.2, nesterov=True
                    ),
                    **OF_TWO_AXES,
                ),
                optax.contrib.muon(
                    0.1,
                    adam_learning_rate=LINEARS[1],
                    adam_b1=0.5,
                    adam_b2=0.9,
                    adam_weight_decay=0.2,
                ),
                **ENLARGED,
            ),
            "muon, adaptive": same(
                0.1, ns_steps=3, adaptive=True, ours=OF_TWO_AXES, **ENLARGED
            ),
            **{
                f"muon, {name}": same(
                    0.1, "dion", preconditioning=name, **OF_STACKS, **ENLARGED
                )
                for name in ("aol", "schatten")
            },
        },
    ),
]
