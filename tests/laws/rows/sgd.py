"""Gradient descent and momentum."""

import eqopt

from ..row import row


ROWS = [
    row(
        lambda learning_rate=0.1: eqopt.SGD(learning_rate),
        name="SGD",
        learning_rate=0.2,
    ),
    row(
        lambda learning_rate=0.1, momentum=0.9: eqopt.SGD(
            learning_rate, momentum, True
        ),
        name="SGD(momentum)",
        learning_rate=0.2,
        momentum=0.5,
    ),
]
