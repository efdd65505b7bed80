"""SGDP: momentum without steps along weights whose norm has no effect."""

import functools

import eqopt

from ...laws.row import row
from ...parity.by_hand import B1, EPS
from ...parity.case import ByHand
from ...parity.moving import DECAY, RATE, Moving, start
from ..method import Method
from .adamp import RATIO, projected


DAMPENING = 0.4


def sgdp_by_hand(delta, nesterov, grads):
    m, p = 0, start(grads[0].shape)
    for g in grads:
        m = B1 * m + (1 - DAMPENING) * g
        d, ratio = projected(g + B1 * m if nesterov else m, g, p, delta)
        new = p * (1 - RATE * DECAY * ratio / (1 - B1)) - RATE * d
        yield new - p
        p = new


def by_hand(delta, nesterov=False):
    opt = eqopt.SGDP(
        RATE, B1, DAMPENING, EPS, delta, RATIO, nesterov=nesterov, weight_decay=DECAY
    )
    return ByHand(Moving(opt), functools.partial(sgdp_by_hand, delta, nesterov), (5, 3))


METHODS = [
    Method(
        eqopt.SGDP,
        idea="SGD without steps along weights whose norm has no effect",
        nearest="SGD",
        default_rate=0.1,
        rates=(0.01, 0.001, 0.01, 0.1),
        laws=[
            row(
                eqopt.ScaleBySGDP,
                momentum=0.8,
                dampening=0.1,
                eps=1e-3,
                delta=0.5,
                wd_ratio=0.3,
                weight_decay=0.2,
            ),
            row(
                lambda learning_rate=0.01, **data: eqopt.SGDP(
                    learning_rate, nesterov=True, delta=9.0, **data
                ),
                name="SGDP",
                learning_rate=0.1,
                momentum=0.9,
                weight_decay=0.3,
            ),
        ],
        by_hand={"sgdp": by_hand(1.2), "sgdp, Nesterov": by_hand(1.2, nesterov=True)},
    ),
]
