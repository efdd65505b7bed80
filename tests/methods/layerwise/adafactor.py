"""Adafactor: Adam's second moments in sublinear memory."""

import optax

import eqopt

from ...laws.row import LINEAR, OF_LEAVES, row
from ...parity.case import COSINES, LINEARS, STACKED, Case, is_matrix
from ..method import Method, same


METHODS = [
    Method(
        eqopt.Adafactor,
        idea="Adam with almost no memory: one number per row and column",
        in_optax="adafactor",
        default_rate=0.01,
        rates=(0.0032, 0.0032, 0.01, 0.01),
        laws=[
            row(
                lambda learning_rate=0.1, **data: eqopt.Adafactor(
                    learning_rate, min_dim_size_to_factor=1, **data
                ),
                name="Adafactor",
                exempt=OF_LEAVES,
                learning_rate=0.02,
                decay_rate=0.5,
                clipping_threshold=0.5,
                momentum=0.3,
                weight_decay=0.1,
                eps=1e-3,
            ),
            row(
                lambda: eqopt.Adafactor(
                    LINEAR,
                    decay_offset=2,
                    multiply_by_parameter_scale=False,
                    clipping_threshold=None,
                    weight_decay=LINEAR,
                    factored=False,
                    mask=is_matrix,
                ),
                name="Adafactor(not factored)",
            ),
            row(
                eqopt.Adafactor,
                name="Adafactor(defaults)",
                exempt={
                    **OF_LEAVES,
                    "test_derivatives_are_exact": "the first update is as long as the "
                    "clipping threshold, where a clip has no derivative",
                },
            ),
        ],
        cases={
            "adafactor": same(0.1),
            "adafactor, factored": same(LINEARS, 2, shapes=STACKED),
            "adafactor, without learning rate": same(
                min_dim_size_to_factor=2, clipping_threshold=0.1
            ),
            "adafactor, momentum": Case(
                eqopt.Adafactor(0.1, 2, 0.5, momentum=0.8, weight_decay=0.1, eps=1e-3),
                optax.adafactor(
                    0.1, 2, 0.5, momentum=0.8, weight_decay_rate=0.1, eps=1e-3
                ),
            ),
            "adafactor, masked": same(
                COSINES,
                multiply_by_parameter_scale=False,
                clipping_threshold=None,
                factored=False,
                ours={"weight_decay": LINEARS, "mask": is_matrix},
                theirs={"weight_decay_rate": LINEARS, "weight_decay_mask": is_matrix},
            ),
        },
    ),
]
