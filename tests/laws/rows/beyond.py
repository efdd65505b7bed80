"""Optimizers after Adam: more momenta, optimism and curvature."""

import eqopt

from ..row import LINEAR, Evaluated, halve, is_matrix, row


ROWS = [
    row(eqopt.ScaleByAdan, b1=0.9, b2=0.8, b3=0.9, eps=1e-3, eps_root=1e-3),
    row(
        lambda learning_rate=0.01, **data: eqopt.Adan(learning_rate, **data),
        name="Adan",
        learning_rate=0.1,
        b1=0.5,
        b2=0.6,
        b3=0.7,
        weight_decay=0.3,
    ),
    row(
        lambda: eqopt.Adan(
            LINEAR,
            weight_decay=halve,
            mask=is_matrix,
            mu_dtype="float32",
            nu_dtype="float32",
        ),
        name="Adan(schedules, mask, float32 moments)",
    ),
    row(eqopt.ScaleByAdEMAMix, b1=0.8, b2=0.9, b3=0.99, alpha=3.0, eps=1e-3),
    row(
        lambda learning_rate=0.01, **data: eqopt.AdEMAMix(learning_rate, **data),
        name="AdEMAMix",
        learning_rate=0.1,
        b3=0.9,
        alpha=2.0,
        weight_decay=0.3,
    ),
    row(
        lambda: eqopt.AdEMAMix(0.01, b3=halve, alpha=LINEAR, mu_dtype="float32"),
        name="AdEMAMix(schedules)",
    ),
    row(eqopt.ScaleBySimplifiedAdEMAMix, b1=0.8, b2=0.9, alpha=3.0, eps=1e-3),
    row(
        lambda learning_rate=0.01, **data: eqopt.SimplifiedAdEMAMix(
            learning_rate, **data
        ),
        name="SimplifiedAdEMAMix",
        learning_rate=0.1,
        b1=0.5,
        alpha=2.0,
        weight_decay=0.3,
    ),
    row(eqopt.ScaleByADOPT, b1=0.8, b2=0.9, eps=1e-3),
    row(
        lambda learning_rate=0.01, **data: eqopt.ADOPT(learning_rate, **data),
        name="ADOPT",
        learning_rate=0.1,
        b1=0.5,
        b2=0.9,
    ),
    row(
        lambda: eqopt.ADOPT(0.01, nesterov=True, use_clipping=False),
        name="ADOPT(nesterov, not clipped)",
    ),
    row(eqopt.ScaleByOptimisticGradient, alpha=0.5, beta=2.0),
    row(
        lambda learning_rate=0.1, **data: eqopt.OptimisticGradientDescent(
            learning_rate, **data
        ),
        name="OptimisticGradientDescent",
        learning_rate=0.2,
        alpha=0.5,
        beta=2.0,
    ),
    row(
        lambda learning_rate=0.01, **data: eqopt.OptimisticAdam(learning_rate, **data),
        name="OptimisticAdam",
        learning_rate=0.1,
        optimism=0.3,
        b1=0.5,
        b2=0.9,
    ),
    row(lambda: eqopt.OptimisticAdam(LINEAR), name="OptimisticAdam(schedule)"),
    row(
        lambda: Evaluated(eqopt.HutchinsonDiagHessian(1)),
        name="HutchinsonDiagHessian",
    ),
    row(
        lambda learning_rate=0.01, **data: Evaluated(
            eqopt.Sophia(learning_rate, **data)
        ),
        name="Sophia",
        learning_rate=0.1,
        b1=0.5,
        b2=0.9,
        gamma=0.5,
        clip_threshold=0.5,
        weight_decay=0.3,
    ),
    row(
        lambda: Evaluated(
            eqopt.Sophia(
                LINEAR, update_interval=2, mu_dtype="float32", track_win_rate=True
            )
        ),
        name="Sophia(win rate)",
    ),
]
