"""SOAP: Adam in the eigenbasis of Shampoo's preconditioner; also made orthogonal."""

import functools

import numpy as np
import optax

import eqopt

from ...laws.row import IN_TURNS, LINEAR, is_matrix, row
from ...parity.by_hand import B1, B2, EPS
from ...parity.case import ByHand
from ...parity.matrices import (
    NUMBERS,
    TABLES,
    eigenvectors,
    in_blocks,
    newton_schulz,
    power_iteration,
)
from ..method import Method


def soap_by_hand(
    beta,
    frequency,
    kl=False,
    b1=B1,
    b2=B2,
    eps=EPS,
    skips_first=True,
    correct_bias=True,
    is_fresh=False,
    has_basis=lambda side, shape: True,
):
    """`has_basis` says whether a side has one, 0 or 1, in a matrix of a shape."""

    def updates(grads):
        m = v = gl = gr = 0
        ql = qr = np.zeros(())
        # The real steps.
        for t, g in enumerate(grads, 0 if skips_first else 1):
            rows, columns = g.shape
            has_left, has_right = (has_basis(side, g.shape) for side in range(2))
            is_first = np.ndim(gl) == 0
            left, right, weight = g, g, 1 - beta
            share = max(1 / (t + skips_first), 1e-3)
            if kl:
                weight = 1 if is_first else weight
                size = np.sqrt(np.mean(g**2)) if has_left and has_right else 1
                left = right = g / np.sqrt(size) if is_first else g
            if kl and not is_first and has_right:
                values = np.diag(qr.T @ gr @ qr)
                left = g @ qr / np.sqrt(np.maximum(values, share * np.mean(values)))
            if kl and not is_first and has_left:
                values = np.diag(ql.T @ gl @ ql)
                values = np.maximum(values, share * np.mean(values))
                right = (g.T @ ql / np.sqrt(values)).T
            left, right = left @ left.T, right.T @ right
            gl = (1 - weight) * gl + weight * left / (columns if kl else 1)
            gr = (1 - weight) * gr + weight * right / (rows if kl else 1)
            if is_first:
                ql, qr = (
                    eigenvectors(x) if has else np.eye(len(x))
                    for x, has in ((gl, has_left), (gr, has_right))
                )
            if t == 0:
                yield 0 * g
                continue
            m = b1 * m + (1 - b1) * g
            for is_step in (not is_fresh, is_fresh):
                if is_step:
                    v = b2 * v + (1 - b2) * (ql.T @ g @ qr) ** 2
                    step_size = np.sqrt(1 - b2**t) / (1 - b1**t) if correct_bias else 1
                    yield step_size * ql @ ((ql.T @ m @ qr) / (np.sqrt(v) + eps)) @ qr.T
                elif t % frequency == 0:
                    if has_left:
                        ql, v = power_iteration(gl, ql, v, 0)
                    if has_right:
                        qr, v = power_iteration(gr, qr, v, 1)

    return updates


def is_shorter(side, shape):
    """Whether a side is the shorter one: for a square matrix, the outputs' side."""
    return side == (0 if shape[0] <= shape[1] else 1)


INPUTS_FIRST = eqopt.MatrixDimensionNumbers(-2, -1)


def inputs_first(updates):
    """The same for matrices with their inputs first."""
    return lambda grads: (u.T for u in updates([g.T for g in grads]))


def scale_by_soap(beta, frequency, **options):
    options = {"weight_dimension_numbers": NUMBERS} | options
    return eqopt.ScaleBySOAP(B1, B2, beta, EPS, frequency, **options)


def soap(
    shape, beta=0.9, frequency=3, ours=None, wrap=lambda by_hand: by_hand, **theirs
):
    """`ours` are further arguments of eqopt, and `theirs` of the function in NumPy."""
    by_hand = wrap(soap_by_hand(beta, frequency, **theirs))
    return ByHand(scale_by_soap(beta, frequency, **(ours or {})), by_hand, shape)


COEFFICIENTS = [*TABLES["standard"][0], *[(1.5, -0.5, 0.0)] * 2]
BETA, FREQUENCY = 0.9, 3


def soap_muon_by_hand(grads, rows=COEFFICIENTS):
    m, n = grads[0].shape
    for u in soap_by_hand(BETA, FREQUENCY, correct_bias=False)(grads):
        # The first update is zero.
        yield -np.sqrt(max(1, m / n)) * newton_schulz(u, rows)


METHODS = [
    Method(
        eqopt.SOAP,
        idea="Adam in the eigenbasis of each matrix",
        theirs=lambda rate: optax.adamw(rate, weight_decay=0.01),
        nearest="AdamW",
        default_rate=0.003,
        rates=(0.0032, 0.001, 0.001, 0.0032),
        ratio=None,
        laws=[
            row(eqopt.ScaleBySOAP, b1=0.8, b2=0.9, eps=1e-3, shampoo_beta=0.7),
            row(
                lambda eps=1e-8: eqopt.ScaleBySOAP(
                    precondition_frequency=2,
                    one_sided=True,
                    skip_first=False,
                    kl=True,
                    stagger=True,
                    eps=eps,
                ),
                name="ScaleBySOAP(one-sided, KL, staggered)",
                exempt=IN_TURNS,
                eps=1e-3,
            ),
            row(
                lambda: eqopt.ScaleBySOAP(block_size=2, mu_dtype="float32", fresh=True),
                name="ScaleBySOAP(blocks)",
                exempt={"test_state_is_sharded_like_parameters": "blocks lie across"},
            ),
            row(eqopt.SOAP, at=0.01, learning_rate=0.1, b1=0.5, weight_decay=0.3),
            row(
                lambda: eqopt.SOAP(
                    LINEAR, weight_decay=LINEAR, mask=is_matrix, fallback=eqopt.SGD(0.1)
                ),
                name="SOAP(schedules, mask, fallback)",
            ),
        ],
        by_hand={
            "soap": soap((4, 4)),
            "soap, each step": soap((4, 4), 0.7, 1),
            # In longer sides, the null space of the first gradient has many bases.
            "soap, wide": soap((4, 5)),
            "soap, KL, tall": soap((5, 4), 0.7, 2, {"kl": True}, kl=True),
            "soap, fresh": soap((4, 5), 0.9, 2, {"fresh": True}, is_fresh=True),
            "soap, first step": soap(
                (4, 4), ours={"skip_first": False}, skips_first=False
            ),
            **{
                f"soap, one-sided, {shape}{', KL' if kl else ''}": soap(
                    shape,
                    ours={"one_sided": True, "kl": kl},
                    kl=kl,
                    has_basis=is_shorter,
                )
                for shape in ((3, 6), (6, 4), (4, 4))
                for kl in (False, True)
            },
            "soap, one-sided, inputs first": soap(
                (4, 4),
                ours={"one_sided": True, "weight_dimension_numbers": INPUTS_FIRST},
                wrap=inputs_first,
                has_basis=is_shorter,
            ),
            "soap, limited": soap(
                (4, 6),
                ours={"max_precond_dim": 5},
                has_basis=lambda side, shape: shape[side] <= 5,
            ),
            "soap, blocks": soap(
                (6, 6),
                ours={"block_size": 3},
                wrap=lambda by_hand: in_blocks(by_hand, (2, 2)),
            ),
        },
    ),
    Method(
        eqopt.SOAPMuon,
        idea="the direction of SOAP, made orthogonal",
        nearest="Muon",
        rates=(0.0032, 0.001, 0.001, 0.0032),
        ratio=None,
        laws=[
            row(
                eqopt.SOAPMuon,
                at=0.01,
                learning_rate=0.1,
                b1=0.5,
                shampoo_beta=0.7,
                eps=1e-3,
                weight_decay=0.3,
            ),
        ],
        by_hand={
            f"soap_muon, {shape}": ByHand(
                eqopt.SOAPMuon(
                    1.0,
                    B1,
                    B2,
                    BETA,
                    EPS,
                    steps=steps,
                    precondition_frequency=FREQUENCY,
                    weight_dimension_numbers=NUMBERS,
                ),
                functools.partial(soap_muon_by_hand, rows=COEFFICIENTS[:steps]),
                shape,
            )
            for shape, steps in (((4, 4), None), ((4, 5), None), ((5, 4), 3))
        },
    ),
]
