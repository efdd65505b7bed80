"""Building blocks."""

import jax
import jax.numpy as jnp
import optax

import eqopt

from ..case import LINEARS, Case, both, curved, is_matrix


UNITS = (3, 4), (4,), (), (1, 5), (2, 3, 2), (2, 3, 1, 2), (1, 2, 1, 3, 2), (1, 5, 1)


def some_nans(updates, params):
    return jax.tree.map(lambda g: jnp.where(g > 1, jnp.nan, g), updates)


def pull_leaf(g, p):
    return g + p / 2


def pull(updates, params):
    return jax.tree.map(pull_leaf, updates, params)


def length(params):
    return {"value": optax.tree.norm(params)}


CASES = {
    "identity": Case(eqopt.Identity(), optax.identity()),
    "set_to_zero": Case(eqopt.SetToZero(), optax.set_to_zero()),
    "scale": Case(eqopt.Scale(-0.3), optax.scale(-0.3)),
    "schedule": both(
        eqopt.ScaleBySchedule, optax.scale_by_schedule, LINEARS, converts=True
    ),
    "learning_rate": both(
        eqopt.ScaleByLearningRate, optax.scale_by_learning_rate, 0.1, flip_sign=False
    ),
    "clip": Case(eqopt.Clip(0.4), optax.clip(0.4)),
    "global norm, clipping": Case(
        eqopt.ClipByGlobalNorm(0.7), optax.clip_by_global_norm(0.7)
    ),
    "global norm, not clipping": Case(
        eqopt.ClipByGlobalNorm(1e3), optax.clip_by_global_norm(1e3)
    ),
    "decay": Case(eqopt.AddDecayedWeights(0.2), optax.add_decayed_weights(0.2)),
    "decay, masked": Case(
        eqopt.AddDecayedWeights(0.2, is_matrix),
        optax.add_decayed_weights(0.2, is_matrix),
        converts=True,
    ),
    "trace": Case(eqopt.Trace(0.8), optax.trace(0.8), converts=True),
    "trace, nesterov": Case(eqopt.Trace(0.8, True), optax.trace(0.8, True)),
    "ema": Case(eqopt.EMA(0.8), optax.ema(0.8)),
    "ema, biased": Case(eqopt.EMA(0.3, False), optax.ema(0.3, False), converts=True),
    "ema, float16": Case(
        eqopt.EMA(0.8, accumulator_dtype=jnp.float16),
        optax.ema(0.8, accumulator_dtype=jnp.float16),
        rtol=1e-2,  # Optax multiplies the float16 average by `decay` in float16
    ),
    "apply_every": Case(eqopt.ApplyEvery(), optax.apply_every()),
    "apply_every, 3": Case(eqopt.ApplyEvery(3), optax.apply_every(3)),
    "adaptive_grad_clip": Case(
        eqopt.AdaptiveGradClip(0.1), optax.adaptive_grad_clip(0.1), shapes=UNITS
    ),
    "adaptive_grad_clip, eps": both(
        eqopt.AdaptiveGradClip, optax.adaptive_grad_clip, 0.5, 0.8, shapes=UNITS
    ),
    "adaptive_grad_clip, axis": Case(
        eqopt.AdaptiveGradClip(0.5, axis=-1),
        optax.adaptive_grad_clip(0.5, axis=-1),
        shapes=((3, 4), (4,), (2, 3, 2)),
    ),
    "adaptive_grad_clip, axes": Case(
        eqopt.AdaptiveGradClip(0.5, axis=(0, 2)),
        optax.adaptive_grad_clip(0.5, axis=(0, 2)),
        shapes=((2, 3, 2), (2, 3, 2, 2)),
    ),
    "centralize": Case(eqopt.Centralize(), optax.centralize()),
    "normalize": Case(eqopt.Normalize(), optax.contrib.normalize()),
    "normalize_by_update_norm": Case(
        eqopt.NormalizeByUpdateNorm(), optax.normalize_by_update_norm()
    ),
    "normalize_by_update_norm, other": both(
        eqopt.NormalizeByUpdateNorm, optax.normalize_by_update_norm, -0.3, 0.5
    ),
    "keep_params_nonnegative": Case(
        eqopt.Chain(eqopt.SGD(0.5), eqopt.KeepParamsNonnegative()),
        optax.chain(optax.sgd(0.5), optax.keep_params_nonnegative()),
    ),
    "zero_nans": Case(
        eqopt.Chain(eqopt.Stateless(some_nans), eqopt.ZeroNaNs()),
        optax.chain(optax.stateless(some_nans), optax.zero_nans()),
    ),
    "reduce_on_plateau": Case(
        eqopt.ReduceLROnPlateau(patience=2),
        optax.contrib.reduce_on_plateau(patience=2),
        length,
    ),
    "reduce_on_plateau, cooldown": Case(
        eqopt.ReduceLROnPlateau(0.5, 1, 0.1, 0.2, 2, min_scale=0.2),
        optax.contrib.reduce_on_plateau(0.5, 1, 0.1, 0.2, 2, min_scale=0.2),
        length,
    ),
    "reduce_on_plateau, means": Case(
        eqopt.ReduceLROnPlateau(0.3, 2, accumulation_size=2),
        optax.contrib.reduce_on_plateau(0.3, 2, accumulation_size=2),
        length,
    ),
    "stateless": Case(eqopt.Stateless(pull), optax.stateless(pull)),
    "stateless_with_tree_map": Case(
        eqopt.StatelessWithTreeMap(pull_leaf), optax.stateless_with_tree_map(pull_leaf)
    ),
    "snapshot": Case(
        eqopt.Snapshot("norm", eqopt.tree.norm), optax.snapshot("norm", optax.tree.norm)
    ),
    "monitor": Case(
        eqopt.Monitor({"norm": eqopt.tree.norm}),
        optax.monitor({"norm": optax.tree.norm}),
    ),
    "distance_over_gradients": Case(
        eqopt.ScaleByDistanceOverGradients(), optax.scale_by_distance_over_gradients()
    ),
    "distance_over_gradients, other": Case(
        eqopt.ScaleByDistanceOverGradients(1e-2, 1e-3, jnp.bfloat16, -0.5),
        optax.scale_by_distance_over_gradients(1e-2, 1e-3, jnp.bfloat16, -0.5),
    ),
    "hutchinson": Case(
        eqopt.HutchinsonDiagHessian(),
        optax.contrib.hutchinson_estimator_diag_hessian(),
        curved,
    ),
}
