"""Optimizers that look at the sign of the gradient."""

import eqopt

from ..row import row


ROWS = [
    row(eqopt.ScaleByLion, b1=0.8, b2=0.9),
    row(lambda: eqopt.ScaleByLion(mode="smooth"), name="ScaleByLion(smooth)"),
    row(lambda: eqopt.ScaleByLion(mode="refined"), name="ScaleByLion(refined)"),
    row(
        lambda learning_rate=0.01, **data: eqopt.Lion(learning_rate, **data),
        name="Lion",
        learning_rate=0.1,
        b1=0.5,
        b2=0.7,
        weight_decay=0.3,
    ),
]
