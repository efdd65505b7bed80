"""Optimizers that find their learning rate by themselves."""

import eqopt

from ..row import LINEAR, is_matrix, row


ROWS = [
    row(
        eqopt.Prodigy,
        learning_rate=0.5,
        b1=0.8,
        b2=0.9,
        b3=0.7,
        eps=1e-3,
        estim_lr0=1e-2,
        estim_lr_coef=2.0,
        weight_decay=0.3,
    ),
    row(
        lambda: eqopt.Prodigy(
            LINEAR,
            estim_lr0=0.1,
            weight_decay=LINEAR,
            safeguard_warmup=True,
            mask=is_matrix,
            mu_dtype="float32",
            nu_dtype="float32",
        ),
        name="Prodigy(schedule, mask, float32 moments)",
    ),
    row(
        eqopt.DAdaptAdamW,
        learning_rate=0.5,
        b1=0.8,
        b2=0.9,
        eps=1e-3,
        estim_lr0=1e-2,
        weight_decay=0.3,
    ),
    row(
        lambda: eqopt.DAdaptAdamW(
            LINEAR,
            estim_lr0=0.1,
            weight_decay=LINEAR,
            mask=is_matrix,
            mu_dtype="float32",
            nu_dtype="float32",
        ),
        name="DAdaptAdamW(schedule, mask, float32 moments)",
    ),
    row(
        eqopt.DoG,
        exempt={
            "test_init_of_the_whole": "the first step is as long as the norm of all "
            "parameters that are given to `init` says"
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
    row(
        eqopt.DoWG,
        learning_rate=0.5,
        init_estim_sq_dist=0.1,
        eps=1e-3,
        weight_decay=0.3,
    ),
    row(lambda: eqopt.DoWG(LINEAR), name="DoWG(schedule)"),
    row(eqopt.ScaleByDistanceOverGradients, reps_rel=1e-2, eps=1e-3, global_scale=-0.5),
    row(
        lambda: eqopt.ScaleByDistanceOverGradients(param_dtype=None),
        name="ScaleByDistanceOverGradients(as the parameters)",
    ),
    row(eqopt.ScaleByCOCOB, alpha=50.0, eps=1e-3),
    row(eqopt.COCOB, alpha=50.0, eps=1e-3, weight_decay=0.1),
    row(
        lambda: eqopt.COCOB(
            LINEAR, weight_decay=0.1, mask=is_matrix, accumulator_dtype="float32"
        ),
        name="COCOB(schedule, mask, float32 sums)",
    ),
]
