"""Adam and its kin."""

import jax.numpy as jnp
import optax

import eqopt

from ..case import COSINE, LINEAR, Case, TorchCase, is_matrix, tree_mask


def acprop(b1=0.9, b2=0.999, eps=1e-16, eps_root=1e-16, **decay):
    """ACProp, not rectified, against Optax's, whose second moment is about the old mean.

    As g - mu_t = b1 (g - mu_{t-1}), that is ours but for a factor, from step 2 on. In
    step 1 Optax divides by 1 + eps.
    """
    ours = eqopt.ACProp(LINEAR[0], b1, b2, eps, eps_root, rectify=False, **decay)
    factor = lambda count: jnp.where(count == 0, 1 + eps / b1, 1 / b1)
    theirs = optax.chain(
        optax.contrib.scale_by_acprop(b1, b2, eps / b1, eps_root / b1**2),
        optax.scale_by_schedule(factor),
        optax.add_decayed_weights(**decay),
        optax.scale_by_learning_rate(LINEAR[1]),
    )
    return Case(ours, theirs)


CASES = {
    "adam": Case(eqopt.Adam(0.1), optax.adam(0.1)),
    "adam, other": Case(
        eqopt.Adam(COSINE[0], 0.5, 0.9, 1e-3, 1e-4),
        optax.adam(COSINE[1], 0.5, 0.9, 1e-3, 1e-4),
    ),
    "adam, nesterov": Case(
        eqopt.Adam(0.1, b1=0.8, nesterov=True),
        optax.adam(0.1, b1=0.8, nesterov=True),
    ),
    "adam, float16 mu": Case(
        eqopt.Adam(0.1, mu_dtype=jnp.float16),
        optax.adam(0.1, mu_dtype=jnp.float16),
        rtol=2e-3,  # Optax multiplies the float16 moment by b1 in float16
    ),
    "adamw": Case(eqopt.AdamW(0.1), optax.adamw(0.1)),
    "adamw, masked": Case(
        eqopt.AdamW(LINEAR[0], weight_decay=0.3, mask=is_matrix),
        optax.adamw(LINEAR[1], weight_decay=0.3, mask=is_matrix),
    ),
    "adamw, other": Case(
        eqopt.AdamW(0.1, 0.7, 0.8, 1e-2, weight_decay=1.0, nesterov=True),
        optax.adamw(0.1, 0.7, 0.8, 1e-2, weight_decay=1.0, nesterov=True),
    ),
    "nadam": Case(eqopt.NAdam(0.1), optax.nadam(0.1)),
    "nadam, other": Case(
        eqopt.NAdam(COSINE[0], 0.7, 0.8, 1e-2, 1e-3),
        optax.nadam(COSINE[1], 0.7, 0.8, 1e-2, 1e-3),
    ),
    "nadam, not nesterov": Case(
        eqopt.NAdam(0.1, nesterov=False), optax.nadam(0.1, nesterov=False)
    ),
    "nadamw": Case(eqopt.NAdamW(0.1), optax.nadamw(0.1)),
    "nadamw, masked": Case(
        eqopt.NAdamW(LINEAR[0], weight_decay=0.3, mask=is_matrix),
        optax.nadamw(LINEAR[1], weight_decay=0.3, mask=is_matrix),
    ),
    "nadamw, scheduled decay": Case(
        eqopt.NAdamW(0.1, 0.7, 0.8, weight_decay=LINEAR[0]),
        optax.nadamw(0.1, 0.7, 0.8, weight_decay=LINEAR[1]),
    ),
    "adamax": Case(eqopt.Adamax(0.1), optax.adamax(0.1)),
    "adamax, other": Case(
        eqopt.Adamax(COSINE[0], 0.5, 0.8, 0.1), optax.adamax(COSINE[1], 0.5, 0.8, 0.1)
    ),
    "adamax, b2 = 0": Case(eqopt.ScaleByAdamax(b2=0.0), optax.scale_by_adamax(b2=0.0)),
    "adamaxw": Case(eqopt.AdamaxW(0.1), optax.adamaxw(0.1)),
    "adamaxw, masked": Case(
        eqopt.AdamaxW(LINEAR[0], weight_decay=0.3, mask=is_matrix),
        optax.adamaxw(LINEAR[1], weight_decay=0.3, mask=is_matrix),
    ),
    "adamaxw, other": Case(
        eqopt.AdamaxW(0.1, 0.7, 0.8, 1e-2, weight_decay=1.0),
        optax.adamaxw(0.1, 0.7, 0.8, 1e-2, weight_decay=1.0),
    ),
    "amsgrad": Case(eqopt.AMSGrad(0.1), optax.amsgrad(0.1)),
    "amsgrad, paper": Case(
        eqopt.AMSGrad(
            LINEAR[0], 0.7, 0.8, bias_correction_mu=False, bias_correction_nu=False
        ),
        optax.amsgrad(
            LINEAR[1], 0.7, 0.8, bias_correction_mu=False, bias_correction_nu=False
        ),
    ),
    "amsgrad, other": Case(
        eqopt.AMSGrad(COSINE[0], 0.5, 0.9, 1e-2, 1e-3, mu_dtype=jnp.float32),
        optax.amsgrad(COSINE[1], 0.5, 0.9, 1e-2, 1e-3, mu_dtype=jnp.float32),
    ),
    "yogi": Case(
        eqopt.Yogi(0.1),
        optax.yogi(0.1),
        rtol=5e-4,  # Optax's first moment starts at 1e-6; ours at zero
    ),
    "yogi, from zero": Case(
        eqopt.ScaleByYogi(initial_accumulator_value=0.0),
        optax.scale_by_yogi(initial_accumulator_value=0.0),
    ),
    "yogi, other": Case(
        eqopt.ScaleByYogi(0.5, 0.8, 1e-2, 1e-3, 0.0),
        optax.scale_by_yogi(0.5, 0.8, 1e-2, 1e-3, 0.0),
    ),
    "radam": Case(
        eqopt.RAdam(0.1),
        optax.radam(0.1),
        rtol=1e-2,  # Optax's rectifier has lost all but two digits in step 6
    ),
    "radam, near": Case(eqopt.RAdam(0.1, b2=0.9), optax.radam(0.1, b2=0.9)),
    "radam, other": Case(
        eqopt.RAdam(COSINE[0], 0.5, 0.9, 1e-2, 1e-3, 4.0),
        optax.radam(COSINE[1], 0.5, 0.9, 1e-2, 1e-3, 4.0),
    ),
    "radam, nesterov": Case(
        eqopt.RAdam(LINEAR[0], b2=0.95, nesterov=True),
        optax.radam(LINEAR[1], b2=0.95, nesterov=True),
    ),
    "radam, never": Case(eqopt.RAdam(0.1, b2=0.5), optax.radam(0.1, b2=0.5)),
    "adabelief": Case(eqopt.AdaBelief(0.1), optax.adabelief(0.1)),
    "adabelief, other": Case(
        eqopt.AdaBelief(COSINE[0], 0.5, 0.9, 1e-3, 1e-4),
        optax.adabelief(COSINE[1], 0.5, 0.9, 1e-3, 1e-4),
    ),
    "adabelief, nesterov": Case(
        eqopt.AdaBelief(0.1, b1=0.8, nesterov=True),
        optax.adabelief(0.1, b1=0.8, nesterov=True),
    ),
    "adabelief, decay": Case(
        eqopt.AdaBelief(LINEAR[0], weight_decay=0.3, mask=is_matrix),
        # The released Optax has none yet.
        optax.chain(
            optax.scale_by_belief(),
            optax.add_decayed_weights(0.3, is_matrix),
            optax.scale_by_learning_rate(LINEAR[1]),
        ),
    ),
    "acprop": acprop(),
    "acprop, other": acprop(0.5, 0.9, 1e-3, 1e-4),
    "acprop, decay": acprop(0.7, weight_decay=0.3, mask=is_matrix),
    # At b2 = 0.5, Optax's 1 - b2 is right. See `departures/test_adam.py`.
    "adan": Case(eqopt.Adan(0.1, b2=0.5), optax.adan(0.1, b2=0.5, eps_root=0.0)),
    "adan, other": Case(
        eqopt.Adan(COSINE[0], 0.7, 0.5, 0.8, 1e-3, 1e-2),
        optax.adan(COSINE[1], 0.7, 0.5, 0.8, 1e-3, 1e-2),
    ),
    "scale_by_adan": Case(
        eqopt.ScaleByAdan(0.9, 0.5, eps_root=1e-4),
        optax.scale_by_adan(0.9, 0.5, eps_root=1e-4),
    ),
    "ademamix": Case(eqopt.AdEMAMix(0.1), optax.contrib.ademamix(0.1)),
    "ademamix, schedules": Case(
        eqopt.AdEMAMix(
            COSINE[0], 0.5, 0.9, LINEAR[0], COSINE[0], weight_decay=0.3, mask=is_matrix
        ),
        optax.contrib.ademamix(
            COSINE[1], 0.5, 0.9, LINEAR[1], COSINE[1], weight_decay=0.3, mask=is_matrix
        ),
    ),
    "ademamix, float16 means": Case(
        eqopt.AdEMAMix(0.1, mu_dtype=jnp.float16, nu_dtype=jnp.float16),
        optax.contrib.ademamix(0.1, mu_dtype=jnp.float16),
        rtol=2e-3,  # Optax multiplies the float16 moments in float16
    ),
    "scale_by_ademamix": Case(
        eqopt.ScaleByAdEMAMix(eps=1e-3, eps_root=1e-2),
        optax.contrib.scale_by_ademamix(eps=1e-3, eps_root=1e-2),
    ),
    "simplified_ademamix": Case(
        eqopt.SimplifiedAdEMAMix(0.01), optax.contrib.simplified_ademamix(0.01)
    ),
    "simplified_ademamix, other": Case(
        eqopt.SimplifiedAdEMAMix(
            LINEAR[0], 0.5, 0.9, 2.0, 1e-3, 1e-2, 0.3, mask=tree_mask
        ),
        optax.contrib.simplified_ademamix(
            LINEAR[1], 0.5, 0.9, 2.0, 1e-3, 1e-2, 0.3, mask=tree_mask
        ),
    ),
    "scale_by_simplified_ademamix, schedule": Case(
        eqopt.ScaleBySimplifiedAdEMAMix(alpha=LINEAR[0]),
        optax.contrib.scale_by_simplified_ademamix(alpha=LINEAR[1]),
    ),
    "adopt": Case(eqopt.ADOPT(0.1), optax.contrib.adopt(0.1)),
    "adopt, other": Case(
        eqopt.ADOPT(LINEAR[0], 0.5, 0.9, 1e-2, nesterov=True),
        optax.contrib.adopt(LINEAR[1], 0.5, 0.9, 1e-2, nesterov=True),
    ),
    "adopt, not clipped": Case(
        # With the default `eps`, Optax is NaN in float16.
        eqopt.ScaleByADOPT(b2=0.9, eps=1e-2, use_clipping=False),
        optax.contrib.scale_by_adopt(b2=0.9, eps=1e-2, use_clipping=False),
    ),
    "adopt, clip_value_fn": Case(
        eqopt.ScaleByADOPT(clip_value_fn=LINEAR[0], mu_dtype=jnp.float32),
        optax.contrib.scale_by_adopt(clip_value_fn=LINEAR[1], mu_dtype=jnp.float32),
    ),
    "optimistic_adam": Case(eqopt.OptimisticAdam(0.1), optax.optimistic_adam_v2(0.1)),
    "optimistic_adam, schedule": Case(
        eqopt.OptimisticAdam(COSINE[0], b1=0.5, nesterov=False),
        optax.optimistic_adam_v2(COSINE[1], b1=0.5, nesterov=False),
    ),
    "optimistic_adam, optimism": Case(
        eqopt.OptimisticAdam(0.1, 0.03, eps=1e-3, mu_dtype=jnp.float32),
        optax.optimistic_adam_v2(
            1.0, alpha=0.1, beta=0.03, eps=1e-3, mu_dtype=jnp.float32
        ),
    ),
}

TORCH = {
    "adam": TorchCase(eqopt.Adam(0.1), "Adam", {"lr": 0.1}),
    "adam, other": TorchCase(
        eqopt.Adam(0.1, 0.5, 0.9, 1e-3),
        "Adam",
        {"lr": 0.1, "betas": (0.5, 0.9), "eps": 1e-3},
    ),
    "adamw": TorchCase(
        eqopt.AdamW(0.1, weight_decay=0.3), "AdamW", {"lr": 0.1, "weight_decay": 0.3}
    ),
    # There b1 grows, at a speed that makes it constant if it is large.
    "nadam": TorchCase(eqopt.NAdam(0.1), "NAdam", {"lr": 0.1, "momentum_decay": 1e9}),
    "nadamw": TorchCase(
        eqopt.NAdamW(0.1, weight_decay=0.3),
        "NAdam",
        {
            "lr": 0.1,
            "momentum_decay": 1e9,
            "weight_decay": 0.3,
            "decoupled_weight_decay": True,
        },
    ),
    "adamax": TorchCase(eqopt.Adamax(0.1), "Adamax", {"lr": 0.1}),
    "adamax, other": TorchCase(
        eqopt.Adamax(0.1, 0.5, 0.8, 0.1),
        "Adamax",
        {"lr": 0.1, "betas": (0.5, 0.8), "eps": 0.1},
    ),
    # There the bias is corrected after the maximum, which the schedule does here.
    "amsgrad": TorchCase(
        eqopt.AMSGrad(
            lambda count: (
                0.1 * jnp.sqrt(eqopt.numerics.bias_correction(0.9, count + 1))
            ),
            b2=0.9,
            eps=0.0,
            bias_correction_nu=False,
        ),
        "Adam",
        {"lr": 0.1, "betas": (0.9, 0.9), "eps": 0.0, "amsgrad": True},
    ),
    # The epsilons differ: see `eqopt.RAdam`.
    "radam": TorchCase(eqopt.RAdam(0.1, eps=0.0), "RAdam", {"lr": 0.1, "eps": 0.0}),
    "radam, other": TorchCase(
        eqopt.RAdam(0.1, 0.5, 0.9, 0.0),
        "RAdam",
        {"lr": 0.1, "betas": (0.5, 0.9), "eps": 0.0},
    ),
}
