"""Parts of the formulas in papers and in authors' code, in NumPy and float64.

`eqopt` has no part in them.
"""

import numpy as np


B1, B2, EPS, EPS_ROOT = 0.8, 0.95, 1e-3, 1e-4


def gradients(steps):
    """Far apart in size, with a zero to begin with."""
    grads = np.random.default_rng(0).normal(size=(steps, 4)) * [1, 10, 1e-2, 1]
    grads[0, -1] = 0
    return grads


def means(grads):
    """The first moment after each step, and the same without its bias."""
    m, seen = 0, []
    for t, g in enumerate(grads, 1):
        m = B1 * m + (1 - B1) * g
        seen.append((m, m / (1 - B1**t)))
    return seen


def rectifier(t):
    rho_inf = 2 / (1 - B2) - 1
    rho = rho_inf - 2 * t * B2**t / (1 - B2**t)
    if rho < 5:
        return 0.0
    over = (rho_inf - 4) * (rho_inf - 2) * rho
    return np.sqrt((rho - 4) * (rho - 2) * rho_inf / over)


def adam_by_hand(grads, b1=0.9, b2=0.999, eps=1e-8):
    """The direction that others take."""
    m = v = 0
    for t, g in enumerate(grads, 1):
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        yield m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + eps)


def one_at_a_time(by_hand):
    """A function of one gradient that returns the next update that `by_hand` yields.

    `by_hand` is a function of all gradients, which it takes in turn.
    """
    waiting = []

    def arriving():
        while True:
            yield waiting.pop()

    updates = by_hand(arriving())

    def update(g):
        waiting.append(g)
        return next(updates)

    return update
