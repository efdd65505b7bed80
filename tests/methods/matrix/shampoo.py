"""Shampoo with grafting, and KL-Shampoo."""

import numpy as np
import optax

import eqopt

from ...laws.row import IN_TURNS, row
from ...parity.by_hand import B1, B2, EPS
from ...parity.case import ByHand
from ...parity.matrices import NUMBERS, eigenvectors, in_blocks, power_iteration
from ..method import Method


B3, GRAFT_B2, GRAFT_EPS, FREQUENCY = 0.7, 0.9, 1e-2, 3


def inverse_root(x, power, eps=EPS):
    values, q = np.linalg.eigh(x)
    if values.min() < eps:
        values = values - values.min()
    return (q * (values + eps) ** -power) @ q.T


def shampoo_by_hand(
    beta,
    graft,
    start=FREQUENCY,
    b1=B1,
    b3=B3,
    eps=EPS,
    frequency=FREQUENCY,
    graft_b2=GRAFT_B2,
    graft_eps=GRAFT_EPS,
    is_one_sided=False,
    exponent=None,
):
    def updates(grads):
        m = v = gl = gr = left = right = 0
        for t, g in enumerate(grads, 1):
            new = 1 if beta == 1 else 1 - beta
            gl, gr = beta * gl + new * g @ g.T, beta * gr + new * g.T @ g
            filtered = (b3 * m + (1 - b3) * g) / (1 - b3 * b1 ** (t - 1))
            m = b1 * m + (1 - b1) * g
            if t == start or (t > start and t % frequency == 0):
                bias = 1 if beta == 1 else 1 - beta**t
                power = exponent or (1 / 2 if is_one_sided else 1 / 4)
                # With one side, it is the shorter one.
                has_left, has_right = (
                    not is_one_sided or is_left == (g.shape[0] <= g.shape[1])
                    for is_left in (True, False)
                )
                left, right = (
                    inverse_root(x / bias, power, eps) if has else np.eye(len(x))
                    for x, has in ((gl, has_left), (gr, has_right))
                )
            v = v + g**2 if graft == "adagrad" else graft_b2 * v + (1 - graft_b2) * g**2
            mean = v / (1 - graft_b2**t) if graft == "adam" else v
            a = filtered if graft == "sgd" else filtered / (np.sqrt(mean) + graft_eps)
            if t >= start:
                u = left @ filtered @ right
                a = u * (np.linalg.norm(a) / np.linalg.norm(u) if graft else 1)
            yield a

    return updates


def kl_by_hand(grads):
    m = np.zeros(grads[0].shape)
    gl = gr = ql = qr = np.zeros(())
    for t, g in enumerate(grads, 1):
        rows, columns = g.shape
        m = B1 * m + (1 - B1) * g
        if t == 1:
            scale = np.sqrt(np.mean(g**2))
            gl, gr, ql, qr = (scale**i * np.eye(n) for i in (1, 0) for n in g.shape)
        x = (g @ qr) / np.sqrt(np.maximum(np.diag(qr.T @ gr @ qr), EPS))
        y = (g.T @ ql) / np.sqrt(np.maximum(np.diag(ql.T @ gl @ ql), EPS))
        gl = B2 * gl + (1 - B2) * x @ x.T / columns
        gr = B2 * gr + (1 - B2) * y @ y.T / rows
        if t == 1:
            ql, qr = eigenvectors(gl), eigenvectors(gr)
        elif t % FREQUENCY == 0:
            ql, qr = (power_iteration(a, q, q, 1)[0] for a, q in ((gl, ql), (gr, qr)))
        u = ql.T @ (m / (1 - B1**t)) @ qr
        u = u / np.sqrt(np.maximum(np.diag(ql.T @ gl @ ql), EPS))[:, None]
        u = u / np.sqrt(np.maximum(np.diag(qr.T @ gr @ qr), EPS))
        yield ql @ u @ qr.T


def by_hand(beta, graft, shape, blocks=None, **options):
    ours = eqopt.ScaleByShampoo(
        B1,
        beta,
        B3,
        EPS,
        precondition_frequency=FREQUENCY,
        graft=graft,
        graft_b2=GRAFT_B2,
        graft_eps=GRAFT_EPS,
        weight_dimension_numbers=NUMBERS,
        **options,
    )
    updates = shampoo_by_hand(
        beta,
        graft,
        options.get("start_preconditioning_step", FREQUENCY),
        is_one_sided=options.get("one_sided", False),
        exponent=options.get("exponent"),
    )
    return ByHand(ours, in_blocks(updates, blocks) if blocks else updates, shape)


def kl_shampoo(shape):
    ours = eqopt.ScaleByShampoo(
        B1,
        B2,
        eps=EPS,
        precondition_frequency=FREQUENCY,
        graft=None,
        kl=True,
        weight_dimension_numbers=NUMBERS,
    )
    return ByHand(ours, kl_by_hand, shape)


METHODS = [
    Method(
        eqopt.Shampoo,
        idea="roots of the second moments of rows and columns",
        theirs=lambda rate: optax.adamw(rate, weight_decay=0.0),
        deviates="Optax has no Shampoo; beside it is its AdamW",
        rates=(0.0032, 0.001, 0.001, 0.001),
        temporary=None,
        ratio=None,
        laws=[
            row(
                eqopt.ScaleByShampoo,
                b1=0.8,
                b2=0.9,
                b3=0.7,
                eps=1e-3,
                exponent=0.3,
                graft_b2=0.7,
                graft_eps=1e-3,
            ),
            row(
                lambda eps=1e-12: eqopt.ScaleByShampoo(
                    b2=0.9,
                    eps=eps,
                    precondition_frequency=2,
                    graft=None,
                    one_sided=True,
                    stagger=True,
                ),
                name="ScaleByShampoo(one-sided, staggered)",
                exempt=IN_TURNS,
                eps=1e-3,
            ),
            row(eqopt.Shampoo, at=0.01, learning_rate=0.1, b1=0.5, weight_decay=0.3),
        ],
        by_hand={
            "shampoo, Adam": by_hand(0.9, "adam", (4, 4)),
            "shampoo, sums, AdaGrad": by_hand(1, "adagrad", (3, 5)),
            "shampoo, RMSprop": by_hand(0.9, "rmsprop", (6, 4)),
            "shampoo, SGD, from the fifth step": by_hand(
                0.9, "sgd", (4, 4), start_preconditioning_step=5
            ),
            "shampoo, sums": by_hand(1, None, (4, 4), start_preconditioning_step=1),
            "shampoo, one-sided, wide": by_hand(0.9, "adam", (3, 6), one_sided=True),
            "shampoo, one-sided, tall": by_hand(
                1, None, (6, 4), one_sided=True, start_preconditioning_step=1
            ),
            "shampoo, exponent": by_hand(0.9, "adam", (5, 4), exponent=0.4),
            "shampoo, blocks": by_hand(0.9, "adam", (6, 4), (2, 2), block_size=3),
            # The fifth row is in a block of three, of which one is empty.
            "shampoo, uneven blocks": by_hand(
                1, "rmsprop", (5, 3), (2, 1), block_size=3
            ),
        },
    ),
    Method(
        eqopt.KLShampoo,
        idea="Shampoo with factors fitted to the covariance of the gradients",
        theirs=lambda rate: optax.adamw(rate, weight_decay=0.01),
        deviates="Optax has no KL-Shampoo; beside it is its AdamW",
        rates=(0.0032, 0.001, 0.001, 0.0032),
        temporary=None,
        ratio=None,
        laws=[
            row(
                lambda b1=0.9, b2=0.95, eps=1e-12: eqopt.ScaleByShampoo(
                    b1, b2, eps=eps, precondition_frequency=2, graft=None, kl=True
                ),
                name="ScaleByShampoo(KL)",
                b1=0.8,
                b2=0.7,
                eps=1e-3,
            ),
            row(eqopt.KLShampoo, at=0.01, learning_rate=0.1, b1=0.5, weight_decay=0.3),
        ],
        by_hand={
            "KL-Shampoo": kl_shampoo((4, 4)),
            "KL-Shampoo, wide": kl_shampoo((4, 5)),
            "KL-Shampoo, tall": kl_shampoo((5, 4)),
        },
    ),
]
