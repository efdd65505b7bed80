"""Shampoo with grafting, and KL-Shampoo."""

import functools

import numpy as np
import optax

import eqopt

from ...laws.row import IN_TURNS, row
from ...parity.by_hand import B1, B2, EPS
from ...parity.case import ByHand
from ...parity.matrices import NUMBERS, eigenvectors, in_blocks, power_iteration
from ..method import Method
from .soap import INPUTS_FIRST, inputs_first, is_shorter


B3, GRAFT_B2, GRAFT_EPS, FREQUENCY = 0.7, 0.9, 1e-2, 3


def inverse_root(x, power, eps=EPS):
    values, q = np.linalg.eigh(x)
    return (q * (values - min(values.min(), 0) + eps) ** -power) @ q.T


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
    correct_bias=True,
):
    def updates(grads):
        m = v = gl = gr = left = right = 0
        for t, g in enumerate(grads, 1):
            new = 1 if beta == 1 else 1 - beta
            gl, gr = beta * gl + new * g @ g.T, beta * gr + new * g.T @ g
            left_out = b3 * b1 ** (t - 1) if correct_bias else 0
            filtered = (b3 * m + (1 - b3) * g) / (1 - left_out)
            m = b1 * m + (1 - b1) * g
            if t == start or (t > start and t % frequency == 0):
                bias = 1 - beta**t if correct_bias and beta < 1 else 1
                power = exponent or (1 / 2 if is_one_sided else 1 / 4)
                # With one side, it is the shorter one, or the left one of a square.
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


def kl_by_hand(grads, exponent=1 / 2, is_one_sided=False, correct_bias=True):
    """A side without a factor has the identity, which stays."""
    m, shape = np.zeros(grads[0].shape), grads[0].shape
    has = [not is_one_sided or is_shorter(side, shape) for side in range(2)]
    factors, bases = ([np.eye(n) for n in shape] for _ in range(2))
    # What multiplies the columns of a matrix in the basis of one side.
    values = lambda i, power: (
        np.maximum(np.diag(bases[i].T @ factors[i] @ bases[i]), EPS) ** -power
    )
    for t, g in enumerate(grads, 1):
        m = B1 * m + (1 - B1) * g
        if t == 1:
            # So that their product is the mean square, however many there are.
            scale = np.mean(g**2) ** (1 / sum(has))
            factors = [scale ** int(has[i]) * factors[i] for i in range(2)]
        x = (g @ bases[1]) * values(1, 1 / 2)
        y = (g.T @ bases[0]) * values(0, 1 / 2)
        grams = x @ x.T / g.shape[1], y @ y.T / g.shape[0]
        for i in np.flatnonzero(has):
            factors[i] = B2 * factors[i] + (1 - B2) * grams[i]
            if t == 1:
                bases[i] = eigenvectors(factors[i])
            elif t % FREQUENCY == 0:
                bases[i] = power_iteration(factors[i], bases[i], bases[i], 1)[0]
        u = bases[0].T @ (m / (1 - B1**t if correct_bias else 1)) @ bases[1]
        u = values(0, exponent)[:, None] * u * values(1, exponent)
        yield bases[0] @ u @ bases[1].T


def by_hand(beta, graft, shape, blocks=None, numbers=NUMBERS, eps=EPS, **options):
    ours = eqopt.ScaleByShampoo(
        B1,
        beta,
        B3,
        eps,
        precondition_frequency=FREQUENCY,
        graft=graft,
        graft_b2=GRAFT_B2,
        graft_eps=GRAFT_EPS,
        weight_dimension_numbers=numbers,
        **options,
    )
    updates = shampoo_by_hand(
        beta,
        graft,
        options.get("start_preconditioning_step", FREQUENCY),
        eps=eps,
        is_one_sided=options.get("one_sided", False),
        exponent=options.get("exponent"),
        correct_bias=options.get("correct_bias", True),
    )
    updates = inputs_first(updates) if numbers is INPUTS_FIRST else updates
    return ByHand(ours, in_blocks(updates, blocks) if blocks else updates, shape)


def kl_shampoo(shape, one_sided=False, **options):
    ours = eqopt.ScaleByShampoo(
        B1,
        B2,
        eps=EPS,
        precondition_frequency=FREQUENCY,
        graft=None,
        one_sided=one_sided,
        kl=True,
        weight_dimension_numbers=NUMBERS,
        **options,
    )
    updates = functools.partial(kl_by_hand, is_one_sided=one_sided, **options)
    return ByHand(ours, updates, shape)


METHODS = [
    Method(
        eqopt.Shampoo,
        idea="roots of the second moments of rows and columns",
        theirs=lambda rate: optax.adamw(rate, weight_decay=0.0),
        nearest="AdamW",
        rates=(0.0032, 0.001, 0.001, 0.001),
        ratio=None,
        laws=[
            # With the default, the laws would end before the first roots.
            row(
                lambda **data: eqopt.ScaleByShampoo(precondition_frequency=2, **data),
                name="ScaleByShampoo",
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
            row(
                lambda learning_rate=0.01, **data: eqopt.Shampoo(
                    learning_rate, precondition_frequency=2, **data
                ),
                name="Shampoo",
                learning_rate=0.1,
                b1=0.5,
                weight_decay=0.3,
            ),
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
            "shampoo, one-sided, inputs first": by_hand(
                0.9, "adam", (4, 4), numbers=INPUTS_FIRST, one_sided=True
            ),
            "shampoo, uncorrected": by_hand(0.9, "adam", (4, 4), correct_bias=False),
            # Larger than some eigenvalues.
            "shampoo, eps": by_hand(0.9, "adam", (4, 4), eps=3.0),
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
        nearest="AdamW",
        rates=(0.0032, 0.001, 0.001, 0.0032),
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
            "KL-Shampoo, exponent": kl_shampoo((4, 4), exponent=0.3),
            "KL-Shampoo, uncorrected": kl_shampoo((4, 4), correct_bias=False),
            **{
                f"KL-Shampoo, one-sided, {shape}": kl_shampoo(shape, one_sided=True)
                for shape in ((3, 6), (6, 4), (4, 4))
            },
        },
    ),
]
