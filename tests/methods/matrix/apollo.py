"""APOLLO: gradients, scaled by what Adam would do in a subspace."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np

import eqopt

from ...laws.row import row
from ...parity.by_hand import B1, B2, EPS
from ...parity.case import ByHand
from ...parity.matrices import NUMBERS
from ..method import Method


RANDOM = dict.fromkeys(
    (
        "test_own_stacks_are_separate_matrices",
        "test_the_order_of_leaves_does_not_matter",
    ),
    "each matrix has other random projections",
)
RANK, GAP, SCALE, GROWTH, SEED = 2, 4, 3.0, 1.1, 7


def growing(t):
    """Scales that grow faster than the limit of growth at first."""
    return SCALE * (1 + t)


def singular_vectors(x, t):
    """By the same routine as in eqopt, because their signs matter."""
    return np.linalg.eigh(x @ x.T)[1][:, ::-1][:, :RANK]


def normals(x, t):
    """The random projection of the first leaf, with a variance of 1 / r."""
    key = jr.fold_in(jr.fold_in(jr.key(SEED), (t - 1) // GAP), 0)
    drawn = jr.normal(key, (len(x), RANK), jnp.float32)
    return np.asarray(drawn, float) / np.sqrt(RANK)


def apollo_by_hand(
    scale_type,
    scale_front=False,
    scales=lambda t: SCALE,
    projection_of=singular_vectors,
):
    def updates(grads):
        m = v = last = 0
        projection = np.zeros(())
        for t, g in enumerate(grads, 1):
            # The short side is projected: of a tall matrix the inputs.
            is_wide = g.shape[0] < g.shape[1]
            x = g if is_wide else g.T
            if t % GAP == 1:
                projection = projection_of(x, t)
            r = projection.T @ x
            m = B1 * m + (1 - B1) * r
            v = B2 * v + (1 - B2) * r**2
            n = m / (np.sqrt(v) + EPS)
            axis = 0 if scale_type == "channel" else None
            lengths = np.linalg.norm(r, axis=axis) + 1e-8
            u = x * np.linalg.norm(n, axis=axis) / lengths
            if scale_front:
                u = u * np.sqrt(scales(t - 1))
            if t > 1:
                u = u / max(np.linalg.norm(u) / (last + 1e-8), GROWTH) * GROWTH
            last = np.linalg.norm(u)
            u = np.sqrt(1 - B2**t) / (1 - B1**t) * u
            if not scale_front:
                u = u * np.sqrt(scales(t - 1))
            yield u if is_wide else u.T

    return updates


def apollo(shape, scale_type="channel", scale=SCALE, proj="svd", front=False, **theirs):
    """`theirs` are further arguments of the function in NumPy."""
    opt = eqopt.ScaleByAPOLLO(
        RANK,
        scale,
        scale_type,
        GAP,
        proj,
        b1=B1,
        b2=B2,
        eps=EPS,
        max_growth=GROWTH,
        key=SEED,
        weight_dimension_numbers=NUMBERS,
        scale_front=front,
    )
    opt = opt if scale is SCALE else eqopt.Scheduled(opt)
    return ByHand(opt, apollo_by_hand(scale_type, front, **theirs), shape)


# Exact in float32.
LINEAR_SCALE = eqopt.schedules.Linear(growing(0), growing(32), 32)

METHODS = [
    Method(
        eqopt.APOLLO,
        idea="gradients, scaled as by Adam in a subspace",
        nearest="GaLore",
        default_rate=0.01,
        rates=(0.0032, 0.001, 0.001, 0.001),
        ratio=None,
        laws=[
            row(
                eqopt.ScaleByAPOLLO,
                {"rank": 2, "update_proj_gap": 2},
                exempt=RANDOM,
                b1=0.8,
                b2=0.9,
                eps=1e-3,
                scale=2.0,
                max_growth=5.0,
            ),
            row(
                lambda: eqopt.ScaleByAPOLLO(
                    2,
                    scale_type="tensor",
                    update_proj_gap=2,
                    proj="svd",
                    max_growth=None,
                ),
                name="ScaleByAPOLLO(singular vectors)",
            ),
            row(
                lambda scale=2.0: eqopt.ScaleByAPOLLO(2, scale, scale_front=True),
                name="ScaleByAPOLLO(scaled before the limit)",
                exempt=RANDOM,
                scale=3.0,
            ),
            row(
                lambda learning_rate=0.01, **data: eqopt.APOLLO(
                    learning_rate, rank=1, scale_type="tensor", **data
                ),
                name="APOLLO",
                exempt=RANDOM,
                learning_rate=0.1,
                scale=128.0,
                weight_decay=0.3,
            ),
        ],
        by_hand={
            "apollo, wide": apollo((3, 6)),
            "apollo, square": apollo((4, 4)),
            "apollo, tensor": apollo((6, 4), "tensor"),
            "apollo, random": apollo((3, 6), proj="random", projection_of=normals),
            **{
                f"apollo, scheduled scale, {name}": apollo(
                    (3, 6), scale=LINEAR_SCALE, front=is_front, scales=growing
                )
                for name, is_front in {"limited": True, "free": False}.items()
            },
        },
    ),
]
