"""Optimizers after Adam: more momenta, optimism and curvature."""

import jax
import jax.numpy as jnp
import optax

import eqopt

from ..case import COSINE, LINEAR, Case, is_matrix, tree_mask


def evaluated(params):
    """A loss whose Hessian is diagonal, so that any signs estimate it exactly."""
    quartic = lambda x: (x.astype(jnp.float32) ** 4 / 12 + x.astype(jnp.float32)).sum()
    value_fn = lambda p: sum(map(quartic, jax.tree.leaves(p)))
    return {"value_fn": value_fn, "obj_fn": value_fn}


CASES = {
    # At b2 = 0.5, Optax's 1 - b2 is right. See `departures/test_beyond.py`.
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
    "optimistic_gradient_descent": Case(
        eqopt.OptimisticGradientDescent(0.1), optax.optimistic_gradient_descent(0.1)
    ),
    "optimistic_gradient_descent, other": Case(
        eqopt.OptimisticGradientDescent(COSINE[0], 0.5, 2.0),
        optax.optimistic_gradient_descent(COSINE[1], 0.5, 2.0),
    ),
    "scale_by_optimistic_gradient": Case(
        eqopt.ScaleByOptimisticGradient(2.0, 0.3),
        optax.scale_by_optimistic_gradient(2.0, 0.3),
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
    "sophia": Case(
        # In bfloat16, rounding turns the sign of a momentum that is nearly zero.
        eqopt.Sophia(0.1, mu_dtype=jnp.float32),
        optax.contrib.sophia(0.1, mu_dtype=jnp.float32),
        evaluated,
        rtol=1e-4,  # dividing by a small curvature magnifies what rounding leaves of mu
    ),
    "sophia, other": Case(
        eqopt.Sophia(
            LINEAR[0], 0.5, 0.3, 1e-3, 0.3, is_matrix, gamma=1.0, update_interval=3
        ),
        optax.contrib.sophia(
            LINEAR[1], 0.5, 0.3, 1e-3, 0.3, is_matrix, gamma=1.0, update_interval=3
        ),
        evaluated,
    ),
    "sophia, not clipped": Case(
        eqopt.Sophia(0.01, eps=0.1, gamma=1.0, clip_threshold=None, update_interval=1),
        optax.contrib.sophia(
            0.01, eps=0.1, gamma=1.0, clip_threshold=None, update_interval=1
        ),
        evaluated,
    ),
    "hutchinson": Case(
        eqopt.HutchinsonDiagHessian(),
        optax.contrib.hutchinson_estimator_diag_hessian(),
        evaluated,
    ),
}
