"""Transformations that look at each layer as a whole."""

import jax

import eqopt

from ..row import row


LAST_TWO = eqopt.MatrixDimensionNumbers(-1, -2)


def matrices(params):
    return jax.tree.map(lambda p: LAST_TWO if p.ndim >= 2 else None, params)


ROWS = [
    row(eqopt.ScaleByTrustRatio, min_norm=0.1, trust_coefficient=0.5, eps=1e-2),
    row(eqopt.ScaleByParamBlockNorm, min_scale=0.1),
    row(eqopt.ScaleByParamBlockRMS, min_scale=0.1),
    row(eqopt.ClipByBlockRMS, {"threshold": 0.5}, threshold=0.2),
    row(lambda: eqopt.KeepNorm("initial"), name="KeepNorm(initial)"),
    row(eqopt.ScaleByFactoredRMS, decay_rate=0.5, eps=1e-3),
    row(
        lambda **data: eqopt.ScaleByFactoredRMS(
            min_dim_size_to_factor=1, step_offset=1, **data
        ),
        name="ScaleByFactoredRMS(small)",
        decay_rate=0.5,
        eps=1e-3,
        clipping_threshold=0.5,
    ),
    row(
        lambda: eqopt.ScaleByFactoredRMS(
            weight_dimension_numbers=matrices, nu_dtype="float32"
        ),
        name="ScaleByFactoredRMS(dimension numbers)",
    ),
]
