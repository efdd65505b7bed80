"""Steps by the curvature of the loss."""

import eqopt

from ..row import LINEAR, Evaluated, row


def searched(make, *arguments, **keywords):
    return lambda **data: Evaluated(make(*arguments, **{**keywords, **data}))


ROWS = [
    row(eqopt.ScaleByLBFGS),
    row(
        lambda: eqopt.ScaleByLBFGS(2, scale_init_precond=False),
        name="ScaleByLBFGS(2, unscaled)",
    ),
    row(searched(eqopt.LBFGS, memory_size=2), name="LBFGS"),
    row(
        lambda learning_rate=LINEAR: eqopt.LBFGS(learning_rate, 2, linesearch=None),
        name="LBFGS(schedule, no line search)",
        learning_rate=0.5,
    ),
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
