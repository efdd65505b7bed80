"""Steps by the curvature of the loss."""

import jax
import jax.numpy as jnp
import optax

import eqopt

from ..case import LINEAR, Case, is_matrix


def evaluated(params):
    """A loss whose Hessian is diagonal, so that any signs estimate it exactly."""
    quartic = lambda x: (x.astype(jnp.float32) ** 4 / 12 + x.astype(jnp.float32)).sum()
    value_fn = lambda p: sum(map(quartic, jax.tree.leaves(p)))
    return {"value_fn": value_fn, "obj_fn": value_fn}


CASES = {
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
