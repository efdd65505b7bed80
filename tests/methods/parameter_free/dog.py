"""Distance over gradients: step sizes from how far the parameters have come."""

import eqopt

from ...laws.row import LINEAR, row
from ...parity.case import LINEARS, is_matrix
from ..method import Method, same


METHODS = [
    Method(
        eqopt.DoG,
        idea="SGD that finds its learning rate",
        in_optax="contrib.dog",
        default_rate=1.0,
        rates=(1, 1, 1, 1),
        laws=[
            row(
                eqopt.DoG,
                exempt={
                    "test_init_of_the_whole": "the first step is as long as the norm of "
                    "all parameters that are given to `init` says"
                },
                learning_rate=0.5,
                eps=1e-3,
                weight_decay=0.3,
            ),
            *[
                row(
                    lambda first=first, kind=kind, **data: eqopt.DoG(
                        LINEAR, (kind, first), mask=is_matrix, **data
                    ),
                    name=f"DoG({kind})",
                    first=0.1,
                    weight_decay=0.3,
                )
                for kind, first in {"distance": 0.2, "learning_rate": 0.3}.items()
            ],
        ],
        cases={
            "dog": same(),
            "dog, distance": same(
                0.5, ("distance", 0.2), 1e-3, weight_decay=0.3, mask=is_matrix
            ),
            "dog, learning rate": same(LINEARS, ("learning_rate", 0.3)),
        },
    ),
    Method(
        eqopt.DoWG,
        idea="DoG in which old gradients count for less",
        in_optax="contrib.dowg",
        default_rate=1.0,
        rates=(0.1, 0.32, 0.32, 0.32),
        laws=[
            row(
                eqopt.DoWG,
                learning_rate=0.5,
                init_estim_sq_dist=0.1,
                eps=1e-3,
                weight_decay=0.3,
            ),
            row(lambda: eqopt.DoWG(LINEAR), name="DoWG(schedule)"),
        ],
        cases={"dowg": same(), "dowg, other": same(0.5, 0.3, 1e-3, 0.3, is_matrix)},
    ),
]
