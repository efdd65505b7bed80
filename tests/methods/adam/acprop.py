"""ACProp: AdaBelief that does not look at the gradient it divides."""

import functools

import jax.numpy as jnp
import numpy as np
import optax

import eqopt

from ...laws.row import row
from ...parity.by_hand import B1, B2, EPS, EPS_ROOT, means, rectifier
from ...parity.case import LINEARS, ByHand, Case, is_matrix
from ..method import Method


def acprop(b1=0.9, b2=0.999, eps=1e-16, eps_root=1e-16, **decay):
    """ACProp, not rectified, against Optax's, with a second moment about the old mean.

    As g - mu_t = b1 (g - mu_{t-1}), theirs is a constant multiple of ours from step 2
    on. In step 1 Optax divides by 1 + eps.
    """
    ours = eqopt.ACProp(LINEARS[0], b1, b2, eps, eps_root, rectify=False, **decay)
    factor = lambda count: jnp.where(count == 0, 1 + eps / b1, 1 / b1)
    theirs = optax.chain(
        optax.contrib.scale_by_acprop(b1, b2, eps / b1, eps_root / b1**2),
        optax.scale_by_schedule(factor),
        optax.add_decayed_weights(**decay),
        optax.scale_by_learning_rate(LINEARS[1]),
    )
    return Case(ours, theirs)


def acprop_by_hand(grads, rectify=True):
    s = 0
    for t, ((m, m_hat), g) in enumerate(zip(means(grads), grads, strict=True), 1):
        r = rectifier(t) if rectify else float(t > 1)
        yield r * g / (np.sqrt(s / (1 - B2 ** (t - 1))) + EPS) if r else m_hat
        s = B2 * s + (1 - B2) * (g - m) ** 2 + EPS_ROOT


METHODS = [
    Method(
        eqopt.ACProp,
        idea="AdaBelief with independent numerator and denominator",
        in_optax="contrib.acprop",
        rates=(0.0032, 0.0032, 0.0032, 0.0032),
        deviates="it rectifies the first steps, as its authors do",
        laws=[
            row(eqopt.ScaleByACProp, b1=0.8, b2=0.9, eps=1e-3, eps_root=1e-3),
            row(
                lambda **data: eqopt.ScaleByACProp(rectify=False, **data),
                name="ScaleByACProp(not rectified)",
                b1=0.8,
                b2=0.9,
                eps=1e-3,
                eps_root=1e-3,
            ),
            row(eqopt.ACProp, at=0.01, learning_rate=0.1, b1=0.5, weight_decay=0.3),
        ],
        cases={
            "acprop": acprop(),
            "acprop, decay": acprop(0.7, weight_decay=0.3, mask=is_matrix),
        },
        by_hand={
            "acprop": ByHand(
                eqopt.ScaleByACProp(B1, B2, EPS, EPS_ROOT), acprop_by_hand
            ),
            "acprop, not rectified": ByHand(
                eqopt.ScaleByACProp(B1, B2, EPS, EPS_ROOT, rectify=False),
                functools.partial(acprop_by_hand, rectify=False),
            ),
        },
    ),
]
