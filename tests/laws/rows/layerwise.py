"""Optimizers that look at each layer as a whole."""

import jax

import eqopt

from ..row import LINEAR, is_matrix, row


LAST_TWO = eqopt.MatrixDimensionNumbers(-1, -2)


def matrices(params):
    return jax.tree.map(lambda p: LAST_TWO if p.ndim >= 2 else None, params)


ROWS = [
    row(eqopt.ScaleByTrustRatio, min_norm=0.1, trust_coefficient=0.5, eps=1e-2),
    row(eqopt.ScaleByParamBlockNorm, min_scale=0.1),
    row(eqopt.ScaleByParamBlockRMS, min_scale=0.1),
    row(
        lambda threshold=0.5: eqopt.ClipByBlockRMS(threshold),
        name="ClipByBlockRMS",
        threshold=0.2,
    ),
    row(
        lambda learning_rate=0.1, **data: eqopt.LAMB(learning_rate, **data),
        name="LAMB",
        learning_rate=0.02,
        b1=0.5,
        b2=0.9,
        eps=1e-3,
        eps_root=1e-3,
        weight_decay=0.3,
    ),
    row(
        lambda: eqopt.LAMB(
            LINEAR,
            weight_decay=LINEAR,
            mask=is_matrix,
            mu_dtype="float32",
            nu_dtype="float32",
        ),
        name="LAMB(schedules, mask, float32 moments)",
    ),
    row(
        lambda learning_rate=0.1, **data: eqopt.LARS(learning_rate, **data),
        name="LARS",
        learning_rate=0.2,
        weight_decay=0.3,
        trust_coefficient=0.1,
        eps=1e-2,
        momentum=0.5,
    ),
    row(
        lambda: eqopt.LARS(
            LINEAR, 0.1, is_matrix, trust_ratio_mask=is_matrix, nesterov=True
        ),
        name="LARS(schedule, masks, nesterov)",
    ),
    row(
        lambda learning_rate=0.1, **data: eqopt.Fromage(learning_rate, **data),
        name="Fromage",
        learning_rate=0.02,
        min_norm=1e-3,
    ),
    row(lambda: eqopt.Fromage(LINEAR), name="Fromage(schedule)"),
    row(
        eqopt.ScaleByNovoGrad, b1=0.5, b2=0.8, eps=1e-3, eps_root=1e-3, weight_decay=0.3
    ),
    row(
        lambda learning_rate=0.1, **data: eqopt.NovoGrad(learning_rate, **data),
        name="NovoGrad",
        learning_rate=0.02,
        b1=0.5,
        b2=0.8,
        weight_decay=0.3,
    ),
    row(
        lambda: eqopt.NovoGrad(LINEAR, weight_decay=LINEAR, mask=is_matrix),
        name="NovoGrad(schedules, mask)",
    ),
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
    row(
        lambda learning_rate=0.1, **data: eqopt.Adafactor(
            learning_rate, min_dim_size_to_factor=1, **data
        ),
        name="Adafactor",
        learning_rate=0.02,
        decay_rate=0.5,
        clipping_threshold=0.5,
        momentum=0.3,
        weight_decay=0.1,
        eps=1e-3,
    ),
    row(
        lambda: eqopt.Adafactor(
            LINEAR,
            decay_offset=2,
            multiply_by_parameter_scale=False,
            clipping_threshold=None,
            weight_decay=LINEAR,
            factored=False,
            mask=is_matrix,
        ),
        name="Adafactor(not factored)",
    ),
    row(eqopt.Adafactor, name="Adafactor(defaults)"),
]
