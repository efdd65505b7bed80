"""Step sizes from the loss."""

import eqopt

from ..row import LINEAR, Evaluated, is_matrix, row


def evaluated(make, **arguments):
    return lambda **data: Evaluated(make(**{**arguments, **data}))


ROWS = [
    row(
        evaluated(eqopt.ScaleByPolyak),
        name="ScaleByPolyak",
        f_min=0.5,
        max_learning_rate=0.3,
        eps=0.1,
    ),
    row(
        evaluated(eqopt.PolyakSGD),
        name="PolyakSGD",
        max_learning_rate=0.3,
        scaling=0.5,
        f_min=0.5,
        eps=0.1,
    ),
    row(
        lambda: Evaluated(eqopt.PolyakSGD(float("inf"), LINEAR, variant="sps+")),
        name="PolyakSGD(schedule, sps+, no cap)",
    ),
    row(lambda: Evaluated(eqopt.PolyakSGD(LINEAR)), name="PolyakSGD(scheduled cap)"),
    row(
        evaluated(eqopt.MoMo),
        name="MoMo",
        learning_rate=0.1,
        beta=0.5,
        lower_bound=0.2,
        weight_decay=0.3,
    ),
    row(
        evaluated(eqopt.MoMo, adapt_lower_bound=True, mask=is_matrix),
        name="MoMo(adaptive bound, mask)",
        learning_rate=0.1,
        lower_bound=0.2,
        weight_decay=0.3,
    ),
    row(
        lambda: Evaluated(eqopt.MoMo(LINEAR, weight_decay=LINEAR, mu_dtype="float32")),
        name="MoMo(schedules, float32 moment)",
    ),
    row(
        evaluated(eqopt.MoMoAdam),
        name="MoMoAdam",
        learning_rate=0.1,
        b1=0.5,
        b2=0.7,
        eps=1e-3,
        lower_bound=0.2,
        weight_decay=0.3,
    ),
    row(
        lambda: Evaluated(
            eqopt.MoMoAdam(
                LINEAR,
                weight_decay=0.1,
                adapt_lower_bound=True,
                mask=is_matrix,
                mu_dtype="float32",
                nu_dtype="float32",
            )
        ),
        name="MoMoAdam(schedule, adaptive bound, mask, float32 moments)",
    ),
]
