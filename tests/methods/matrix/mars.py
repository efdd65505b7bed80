"""MARS: gradients with less variance, for AdamW, Lion and Shampoo."""

import functools

import jax
import numpy as np
import optax

import eqopt

from ...laws.row import LINEAR, OF_LEAVES, Adapter, is_matrix, row
from ...parity.by_hand import B1, B2, EPS
from ...parity.case import ByHand
from ...parity.matrices import NUMBERS, TABLES, newton_schulz
from ..method import Method


GAMMA, MAX_NORM = 0.3, 6.0
STANDARD = TABLES["standard"][0]

DIRECTIONS = {
    "adamw": lambda m, v, t: m / (1 - B1**t) / (np.sqrt(v / (1 - B2**t)) + EPS),
    "lion": lambda m, v, t: np.sign(m),
    "shampoo": lambda m, v, t: (
        np.sqrt(max(1, m.shape[0] / m.shape[1]))
        * newton_schulz(m / (1 - B1), STANDARD, EPS)
    ),
}


def mars_by_hand(grads, mars_type, at_previous=None):
    """With the gradients of the same batches at the previous parameters, if given."""
    m = v = 0
    at_previous = [0, *grads[:-1]] if at_previous is None else at_previous
    for t, (g, last) in enumerate(zip(grads, at_previous, strict=True), 1):
        c = g + GAMMA * B1 / (1 - B1) * (g - last)
        c = c / max(1, np.linalg.norm(c) / MAX_NORM)
        m = B1 * m + (1 - B1) * c
        v = B2 * v + (1 - B2) * c**2
        yield DIRECTIONS[mars_type](m, v, t)


def mars(learning_rate, mars_type, **options):
    """With the numbers of `mars_by_hand`."""
    return eqopt.MARS(learning_rate, mars_type, B1, B2, EPS, GAMMA, MAX_NORM, **options)


def uphill(mars_type, **keywords):
    """The direction alone."""
    opt = mars(1.0, mars_type, weight_dimension_numbers=NUMBERS, **keywords)
    return eqopt.Chain(opt, eqopt.Scale(-1.0))


class Exact(Adapter):
    """Passes half of the gradients as gradients at the previous parameters."""

    def adapted(self, updates, params):
        return updates, {"previous_grad": jax.tree.map(lambda g: g / 2, updates)}


METHODS = [
    Method(
        eqopt.MARS,
        idea="AdamW, Lion or Shampoo on variance-reduced gradients",
        theirs=lambda rate: optax.adamw(rate, 0.95, 0.99, weight_decay=0.0),
        nearest="AdamW",
        default_rate=0.003,
        rates=(0.0032, 0.001, 0.001, 0.001),
        ratio=1.05 * 9 / 7,  # it also reads and writes the last gradients
        laws=[
            row(eqopt.CorrectByMARS, gamma=0.3, b1=0.5, max_norm=0.5),
            row(
                lambda learning_rate=LINEAR, **data: eqopt.MARS(
                    learning_rate, mask=is_matrix, mu_dtype="float32", **data
                ),
                name="MARS",
                exempt=OF_LEAVES,
                learning_rate=0.1,
                b1=0.5,
                b2=0.9,
                gamma=0.3,
                max_norm=0.5,
                weight_decay=0.3,
            ),
            row(
                lambda learning_rate=0.01, **data: eqopt.MARS(
                    learning_rate, "shampoo", optimize_1d=True, **data
                ),
                name="MARS(shampoo, all parameters)",
                exempt=OF_LEAVES,
                learning_rate=0.1,
                b1=0.5,
                eps=1e-3,
                weight_decay=0.3,
            ),
            row(
                lambda learning_rate=0.01, **data: eqopt.MARS(
                    learning_rate, "lion", **data
                ),
                name="MARS(lion)",
                exempt=OF_LEAVES,
                learning_rate=0.1,
                b1=0.5,
                weight_decay=0.3,
            ),
            row(
                lambda learning_rate=0.01, **data: Exact(
                    eqopt.MARS(learning_rate, is_approx=False, **data)
                ),
                name="MARS(exact)",
                exempt=OF_LEAVES,
                learning_rate=0.1,
                b1=0.5,
                gamma=0.3,
                max_norm=0.5,
            ),
        ],
        by_hand={
            f"mars, {name}": ByHand(
                uphill(name), functools.partial(mars_by_hand, mars_type=name), (6, 4)
            )
            for name in DIRECTIONS
        },
    ),
]
