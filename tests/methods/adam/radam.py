"""RAdam: Adam that waits until it knows enough of the second moment."""

import eqopt

from ...laws.row import LINEAR, row
from ...parity.case import COSINES, LINEARS
from ..method import Method, same


METHODS = [
    Method(
        eqopt.RAdam,
        idea="Adam that warms up by itself",
        in_optax="radam",
        rates=(0.01, 0.0032, 0.01, 0.0032),
        laws=[
            # A `threshold` of 4 needs four steps, of which most laws take fewer.
            row(
                eqopt.ScaleByRAdam,
                b1=0.8,
                b2=0.9,
                eps=1e-3,
                eps_root=1e-3,
                threshold=20.0,
            ),
            row(
                lambda: eqopt.RAdam(LINEAR, b2=0.9, threshold=4, nesterov=True),
                name="RAdam(nesterov)",
            ),
            row(eqopt.RAdam, at=0.01, learning_rate=0.1, b1=0.5),
        ],
        cases={
            # Optax's rectifier has lost all but two digits in step 6.
            "radam": same(0.1, rtol=1e-2, converts=True),
            "radam, other": same(COSINES, 0.5, 0.9, 1e-2, 1e-3, 4.0),
            "radam, nesterov": same(LINEARS, b2=0.95, nesterov=True),
            "radam, never": same(0.1, b2=0.5),
        },
    ),
]
