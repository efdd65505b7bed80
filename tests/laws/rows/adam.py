"""Adam and its kin."""

import eqopt

from ..row import LINEAR, row


ROWS = [
    row(eqopt.ScaleByAdam, b1=0.8, b2=0.9, eps=1e-3, eps_root=1e-3),
    row(lambda: eqopt.ScaleByAdam(nesterov=True), name="ScaleByAdam(nesterov)"),
    row(
        lambda learning_rate=0.01, **data: eqopt.Adam(learning_rate, **data),
        name="Adam",
        learning_rate=0.1,
        b1=0.5,
        b2=0.9,
        eps=1e-3,
    ),
    row(
        lambda: eqopt.Adam(LINEAR, mu_dtype="float32", nu_dtype="float32"),
        name="Adam(schedule, float32 moments)",
    ),
    row(
        lambda learning_rate=0.01, **data: eqopt.AdamW(learning_rate, **data),
        name="AdamW",
        learning_rate=0.1,
        weight_decay=0.3,
    ),
]
