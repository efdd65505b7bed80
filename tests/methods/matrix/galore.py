"""GaLore: the state of an optimizer, on gradients projected to a low rank."""

import jax
import optax

import eqopt

from ...laws.row import row
from ...parity.case import LINEARS, OF_TWO_AXES, Case, both, is_matrix
from ..method import Method


def without_none(opt):
    """Optax's GaLore fails if there is a `None` among the parameters."""
    leaves = jax.tree.leaves

    def update(updates, state, params=None):
        new, state = opt.update(leaves(updates), state, leaves(params))
        return jax.tree.unflatten(jax.tree.structure(updates), new), state

    return optax.GradientTransformation(lambda p: opt.init(leaves(p)), update)


def galore(*arguments, **named):
    return without_none(optax.contrib.galore(*arguments, **named))


# Of other matrices the two project different sides; see the departures.
SQUARE = (4, 4), (4,), (), (2, 3, 2)

METHODS = [
    Method(
        eqopt.GaLore,
        idea="Adam in a subspace of each matrix",
        in_optax="contrib.galore",
        rates=(0.0032, 0.01, 0.0032, 0.001),
        deviates="it projects the short side of a matrix, Optax the long one",
        laws=[
            row(eqopt.ScaleByGaLore, {"rank": 2, "update_proj_gap": 2}, scale=0.5),
            row(
                lambda learning_rate=0.01, **data: eqopt.GaLore(
                    learning_rate, rank=1, inner=eqopt.Trace(0.9), **data
                ),
                name="GaLore",
                learning_rate=0.1,
                scale=0.5,
                weight_decay=0.3,
            ),
        ],
        cases={
            "galore": both(eqopt.GaLore, galore, 0.1, ours=OF_TWO_AXES, shapes=SQUARE),
            "galore, rank": both(
                eqopt.GaLore,
                galore,
                LINEARS,
                2,
                50,
                0.3,
                weight_decay=0.2,
                mask=is_matrix,
                ours={"inner": eqopt.Trace(0.5), **OF_TWO_AXES},
                theirs={"base_optimizer": optax.trace(0.5)},
                shapes=SQUARE,
            ),
            # Without momentum, because the signs of new singular vectors are arbitrary.
            "scale_by_galore": Case(
                eqopt.ScaleByGaLore(
                    1, 2, 0.3, inner=eqopt.ScaleBySign(), **OF_TWO_AXES
                ),
                without_none(
                    optax.contrib.scale_by_galore(
                        1, 2, 0.3, base_optimizer=optax.scale_by_sign()
                    )
                ),
                shapes=SQUARE,
            ),
        },
    ),
]
