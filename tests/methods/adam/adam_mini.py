"""Adam-mini: Adam with one second moment for each block of parameters."""

import jax
import numpy as np

import eqopt
from eqopt.groups import BlockAxes

from ...laws.row import row
from ...parity.by_hand import B1, B2, EPS
from ...parity.case import ByHand
from ...parity.moving import DECAY, RATE, with_decay
from ..method import Method


def adam_mini_by_hand(blocks):
    """From a function that gives for each element the number of its block."""

    def updates(grads):
        block = blocks(np.indices(grads[0].shape))
        m, v = 0, np.zeros(block.max() + 1)
        for t, g in enumerate(grads, 1):
            m = B1 * m + (1 - B1) * g
            for b in range(len(v)):
                v[b] = B2 * v[b] + (1 - B2) * np.mean(g[block == b] ** 2)
            root = np.sqrt(v / (1 - B2**t)) + EPS
            yield m / (1 - B1**t) / root[block]

    return updates


def of_matrices(params):
    """Two groups of rows, if there is an even number, else a block for each row."""
    even = BlockAxes((0, 1), 2)
    blocks = lambda p: even if p.shape[0] % 2 == 0 else BlockAxes(-1)
    return jax.tree.map(lambda p: blocks(p) if p.ndim == 2 else BlockAxes(()), params)


def scale_by_adam_mini(block_axes):
    return eqopt.ScaleByAdamMini(B1, B2, EPS, block_axes)


METHODS = [
    Method(
        eqopt.AdamMini,
        idea="Adam with one second moment per neuron and attention head",
        nearest="AdamW",
        rates=(0.0032, 0.01, 0.0032, 0.001),
        laws=[
            row(
                lambda **data: eqopt.ScaleByAdamMini(block_axes=of_matrices, **data),
                name="ScaleByAdamMini",
                b1=0.8,
                b2=0.9,
                eps=1e-3,
            ),
            row(eqopt.AdamMini, at=0.01, learning_rate=0.1, b1=0.5, weight_decay=0.3),
        ],
        by_hand={
            "adam_mini, rows": with_decay(
                eqopt.AdamMini(RATE, B1, B2, EPS, BlockAxes(-1), weight_decay=DECAY),
                adam_mini_by_hand(lambda index: index[0]),
                (6, 4),
            ),
            "adam_mini, heads": ByHand(
                scale_by_adam_mini(BlockAxes((0, 1), 3)),
                adam_mini_by_hand(lambda index: index[0] // 2),
                (6, 4),
            ),
            "adam_mini, whole": ByHand(
                scale_by_adam_mini(BlockAxes()),
                adam_mini_by_hand(lambda index: 0 * index[0]),
                (3, 5),
            ),
        },
    ),
]
