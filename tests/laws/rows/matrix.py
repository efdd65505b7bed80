"""Optimizers that look at parameters as matrices."""

import eqopt

from ..row import LINEAR, is_matrix, row


ROWS = [
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
        lambda learning_rate=0.01, **data: eqopt.Muon(learning_rate, **data),
        name="Muon",
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
    row(
        lambda scale=1.0: eqopt.ScaleByGaLore(2, 2, scale),
        name="ScaleByGaLore",
        scale=0.5,
    ),
    row(
        lambda learning_rate=0.01, **data: eqopt.GaLore(
            learning_rate, rank=1, inner=eqopt.Trace(0.9), **data
        ),
        name="GaLore",
        learning_rate=0.1,
        scale=0.5,
        weight_decay=0.3,
    ),
]
