"""SM3: Adagrad whose sums of squares are remembered by row and by column only."""

import jax
import optax

import eqopt

from ...laws.row import LINEAR, row
from ...parity.case import Case, both
from ..method import Method, same


def by_row_and_column(params):
    """Dimension numbers of what has two axes or more; the others stack matrices."""
    numbers = eqopt.MatrixDimensionNumbers(-1, -2)
    return jax.tree.map(lambda p: numbers if p.ndim >= 2 else None, params)


NAN = {
    "test_a_nan_leaves_the_same_traces": "XLA's maxima ignore a NaN on a CPU, and a "
    "second pass to find it takes 1.3 of Optax's time; `mu` and the parameters keep it",
}
COVER = {
    **NAN,
    "other_model": "a cover of one set is a cover of any shape, and broadcasts",
}

METHODS = [
    Method(
        eqopt.SM3,
        idea="Adagrad with one number per row and column, and momentum",
        in_optax="sm3",
        default_rate=0.1,
        rates=(0.1, 0.1, 0.01, 0.01),
        laws=[
            row(eqopt.ScaleBySM3, b1=0.8, b2=0.9, eps=1e-3, exempt=NAN),
            row(
                lambda: eqopt.ScaleBySM3(b1=None),
                name="ScaleBySM3(no momentum)",
                exempt={
                    **COVER,
                    "test_derivatives_are_exact": "`b2` is at its upper bound",
                },
            ),
            row(eqopt.SM3, at=0.1, learning_rate=0.3, momentum=0.5, exempt=NAN),
            row(
                lambda: eqopt.SM3(
                    LINEAR,
                    None,
                    weight_dimension_numbers=by_row_and_column,
                    nu_dtype="float32",
                ),
                name="SM3(schedule, matrices)",
                exempt=COVER,
            ),
        ],
        cases={
            "sm3": same(0.1, shapes=((3, 4), (4,), (2, 3, 2))),
            "sm3, other momentum": same(0.1, 0.5, shapes=((1, 4), (1,), (2, 3, 2, 1))),
            "sm3, no momentum": Case(
                eqopt.SM3(0.1, None), optax.sm3(0.1, 0.0), shapes=((3, 4), (4,), (2, 2))
            ),
            # Optax's SM3 takes neither scalars nor schedules.
            "scale by sm3": both(
                eqopt.ScaleBySM3, optax.scale_by_sm3, shapes=((3, 4), (4,), (2, 3, 2))
            ),
            "scale by sm3, mean": Case(
                eqopt.ScaleBySM3(0.5, 0.8, 1e-3),
                optax.scale_by_sm3(0.5, 0.8, 1e-3),
                shapes=((3, 4), (4,), (2, 3, 2)),
            ),
        },
    ),
]
