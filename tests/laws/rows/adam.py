"""Adam and its kin."""

import eqopt

from ..row import LINEAR, halve, is_matrix, row


ROWS = [
    row(eqopt.ScaleByAdam, b1=0.8, b2=0.9, eps=1e-3, eps_root=1e-3),
    row(lambda: eqopt.ScaleByAdam(nesterov=True), name="ScaleByAdam(nesterov)"),
    row(
        lambda learning_rate=0.01, **data: eqopt.Adam(learning_rate, **data),
        name="Adam",
        learning_rate=0.1,
        b1=0.5,
        b2=0.9,
        eps=1e-3,
    ),
    row(
        lambda: eqopt.Adam(LINEAR, mu_dtype="float32", nu_dtype="float32"),
        name="Adam(schedule, float32 moments)",
    ),
    row(
        lambda learning_rate=0.01, **data: eqopt.AdamW(learning_rate, **data),
        name="AdamW",
        learning_rate=0.1,
        weight_decay=0.3,
    ),
    row(
        lambda learning_rate=0.01, **data: eqopt.NAdam(learning_rate, **data),
        name="NAdam",
        learning_rate=0.1,
        b1=0.5,
    ),
    row(
        lambda learning_rate=0.01, **data: eqopt.NAdamW(learning_rate, **data),
        name="NAdamW",
        learning_rate=0.1,
        b2=0.9,
        weight_decay=0.3,
    ),
    row(eqopt.ScaleByAdamax, b1=0.8, b2=0.9, eps=1e-3),
    row(
        lambda learning_rate=0.01, **data: eqopt.Adamax(learning_rate, **data),
        name="Adamax",
        learning_rate=0.1,
        b1=0.5,
        eps=1e-3,
    ),
    row(
        lambda learning_rate=0.01, **data: eqopt.AdamaxW(learning_rate, **data),
        name="AdamaxW",
        learning_rate=0.1,
        weight_decay=0.3,
    ),
    row(eqopt.ScaleByAMSGrad, b1=0.8, b2=0.9, eps=1e-3, eps_root=1e-3),
    row(
        lambda: eqopt.AMSGrad(
            LINEAR,
            mu_dtype="float32",
            bias_correction_mu=False,
            bias_correction_nu=False,
            nu_dtype="float32",
        ),
        name="AMSGrad(paper, schedule, float32 moments)",
    ),
    row(
        lambda learning_rate=0.01, **data: eqopt.AMSGrad(learning_rate, **data),
        name="AMSGrad",
        learning_rate=0.1,
        b1=0.5,
        eps=1e-3,
    ),
    row(
        eqopt.ScaleByYogi,
        b1=0.8,
        b2=0.9,
        eps=1e-2,
        eps_root=1e-3,
        initial_accumulator_value=1e-3,
    ),
    row(
        lambda learning_rate=0.01, **data: eqopt.Yogi(learning_rate, **data),
        name="Yogi",
        learning_rate=0.1,
        b1=0.5,
        initial_accumulator_value=1e-3,
    ),
    # A `threshold` of 4 needs four steps, of which most laws take fewer.
    row(eqopt.ScaleByRAdam, b1=0.8, b2=0.9, eps=1e-3, eps_root=1e-3, threshold=20.0),
    row(
        lambda: eqopt.RAdam(LINEAR, b2=0.9, threshold=4, nesterov=True),
        name="RAdam(nesterov)",
    ),
    row(
        lambda learning_rate=0.01, **data: eqopt.RAdam(learning_rate, **data),
        name="RAdam",
        learning_rate=0.1,
        b1=0.5,
    ),
    row(eqopt.ScaleByBelief, b1=0.8, b2=0.9, eps=1e-3, eps_root=1e-3),
    row(lambda: eqopt.ScaleByBelief(nesterov=True), name="ScaleByBelief(nesterov)"),
    row(
        lambda learning_rate=0.01, **data: eqopt.AdaBelief(learning_rate, **data),
        name="AdaBelief",
        learning_rate=0.1,
        b1=0.5,
        weight_decay=0.3,
    ),
    row(eqopt.ScaleByACProp, b1=0.8, b2=0.9, eps=1e-3, eps_root=1e-3),
    row(
        lambda **data: eqopt.ScaleByACProp(rectify=False, **data),
        name="ScaleByACProp(not rectified)",
        b1=0.8,
        b2=0.9,
        eps=1e-3,
        eps_root=1e-3,
    ),
    row(
        lambda learning_rate=0.01, **data: eqopt.ACProp(learning_rate, **data),
        name="ACProp",
        learning_rate=0.1,
        b1=0.5,
        weight_decay=0.3,
    ),
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
    row(
        lambda learning_rate=0.01, **data: eqopt.OptimisticAdam(learning_rate, **data),
        name="OptimisticAdam",
        learning_rate=0.1,
        optimism=0.3,
        b1=0.5,
        b2=0.9,
    ),
    row(lambda: eqopt.OptimisticAdam(LINEAR), name="OptimisticAdam(schedule)"),
]
