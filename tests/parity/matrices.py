"""Matrix methods as in their papers and their authors' code, in NumPy and float64.

Each is a generator of updates, from a list of gradients of one matrix. `eqopt` has no
part in them.
"""

import numpy as np

import eqopt


# Rows are outputs, as in PyTorch, and as in these formulas.
NUMBERS = eqopt.MatrixDimensionNumbers(-1, -2)


def newton_schulz(g, rows, eps=1e-7):
    """On the singular values."""
    u, s, vh = np.linalg.svd(g, full_matrices=False)
    s = s / (np.linalg.norm(s) + eps)
    for a, b, c in rows:
        s = a * s + b * s**3 + c * s**5
    return (u * s) @ vh


def eigenvectors(x):
    return np.linalg.eigh(x)[1][:, ::-1]


def power_iteration(gg, q, v, axis):
    """One step of it, on sorted columns, and the second moment sorted like them."""
    order = np.argsort(-np.diag(q.T @ gg @ q))
    return np.linalg.qr(gg @ q[:, order])[0], np.take(v, order, axis)
