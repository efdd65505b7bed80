"""Simplified AdEMAMix: one momentum, and the gradient itself."""

import optax

import eqopt

from ...laws.row import row
from ...parity.case import LINEARS, Case, tree_mask
from ..method import Method, same


METHODS = [
    Method(
        eqopt.SimplifiedAdEMAMix,
        idea="AdEMAMix in one momentum",
        in_optax="contrib.simplified_ademamix",
        default_rate=0.0001,
        rates=(0.0001, 0.0001, 0.0001, 0.0001),
        laws=[
            row(eqopt.ScaleBySimplifiedAdEMAMix, b1=0.8, b2=0.9, alpha=3.0, eps=1e-3),
            row(
                eqopt.SimplifiedAdEMAMix,
                at=0.01,
                learning_rate=0.1,
                b1=0.5,
                alpha=2.0,
                weight_decay=0.3,
            ),
        ],
        cases={
            "simplified_ademamix": same(0.01, converts=True),
            "simplified_ademamix, other": same(
                LINEARS, 0.5, 0.9, 2.0, 1e-3, 1e-2, 0.3, mask=tree_mask
            ),
            "scale_by_simplified_ademamix, schedule": Case(
                eqopt.ScaleBySimplifiedAdEMAMix(alpha=LINEARS[0]),
                optax.contrib.scale_by_simplified_ademamix(alpha=LINEARS[1]),
            ),
        },
    ),
]
