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


_MUON = (3.4445, -4.7750, 2.0315)
_NEAR_ONE = (2.0, -1.5, 0.5)
# Rows as printed by the authors, or in NVIDIA's Emerging-Optimizers for "aol", "cubic"
# and the 8 rows of Polar Express; what the norm is multiplied by; and whether steps
# beyond them take the last row again.
TABLES = {
    "standard": ([_MUON] * 5, 1, False),
    "dion": (
        [
            (4.0848, -6.8946, 2.9270),
            (3.9505, -6.3029, 2.6377),
            (3.7418, -5.5913, 2.3037),
            (2.8769, -3.1427, 1.2046),
            (2.8366, -3.0525, 1.2012),
        ],
        1,
        False,
    ),
    "polar_express": (
        [
            (8.156554524902461, -22.48329292557795, 15.878769915207462),
            (4.042929935166739, -2.808917465908714, 0.5000178451051316),
            (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
            (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
            (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
        ],
        1.02,
        True,
    ),
    # The paper's, divided by 1.01, its third and its fifth power, except for the last.
    "polar_express_8": (
        [
            (8.2051, -22.9019, 16.4607),
            (4.0664, -2.8612, 0.5184),
            (3.9096, -2.8234, 0.5250),
            (3.2856, -2.4153, 0.4853),
            (2.2779, -1.6198, 0.3985),
            (1.8726, -1.2307, 0.3585),
            (1.8564, -1.2132, 0.3568),
            (1.875, -1.25, 0.375),
        ],
        1,
        True,
    ),
    "cans": (
        [
            (8.4703, -25.1081, 18.6293),
            (4.1828, -3.1087, 0.5806),
            (3.9619, -2.9541, 0.5630),
            (3.2866, -2.4647, 0.5074),
            (2.2737, -1.6447, 0.4162),
        ],
        1,
        True,
    ),
    "aol": (
        [
            (4.0098, -7.0585, 2.4635),
            (3.4585, -5.5479, 2.5959),
            (2.7573, -3.2939, 1.4254),
            (2.7215, -3.0494, 1.3169),
        ],
        1,
        False,
    ),
    "cubic": (
        [
            (3.3656576, -3.3420992, 0),
            (2.5744352, -1.4957376, 0),
            (2.5368962, -1.4312570, 0),
            (2.4418906, -1.2764040, 0),
            (2.2230472, -0.9630650, 0),
        ],
        1,
        False,
    ),
    "deepseek": ([_MUON] * 8 + [_NEAR_ONE] * 2, 1, True),
    "simple": ([_NEAR_ONE] * 12, 1, False),
}


def eigenvectors(x):
    return np.linalg.eigh(x)[1][:, ::-1]


def power_iteration(gg, q, v, axis):
    """One step of it, on sorted columns, and the second moment sorted like them."""
    values = np.diag(q.T @ gg @ q)
    order = np.argsort(-values)
    shifted = gg + 1e-5 * np.max(values) * np.eye(len(gg))
    return np.linalg.qr(shifted @ q[:, order])[0], np.take(v, order, axis)


def in_blocks(updates, blocks):
    """`updates` of each block by itself: so many of rows and of columns, all equal."""

    def of_all(grads):
        shape = grads[0].shape
        sizes = [-(-n // k) for n, k in zip(shape, blocks, strict=True)]
        missing = [
            k * size - n for n, k, size in zip(shape, blocks, sizes, strict=True)
        ]
        padded = [np.pad(g, [(0, n) for n in missing]) for g in grads]
        split = lambda g: [np.hsplit(x, blocks[1]) for x in np.vsplit(g, blocks[0])]
        rows = [zip(*row, strict=True) for row in zip(*map(split, padded), strict=True)]
        steps = [[updates(list(block)) for block in row] for row in rows]
        for _ in grads:
            u = np.block([[next(block) for block in row] for row in steps])
            yield u[: shape[0], : shape[1]]

    return of_all
