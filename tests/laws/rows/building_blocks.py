"""Building blocks."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

import eqopt

from ..row import LINEAR, Evaluated, halve, is_matrix, row


class AddOfLeaf(eqx.Module):
    """A function with data."""

    factor: Any

    def __call__(self, g, p):
        factor = jnp.asarray(self.factor, g.dtype)
        return g if p is None else g + factor * p.astype(g.dtype)


class Add(eqx.Module):
    factor: Any

    def __call__(self, updates, params):
        return jax.tree.map(AddOfLeaf(self.factor), updates, params)


def add_half(updates, params):
    return Add(0.5)(updates, params)


def add_half_of_leaf(g, p):
    return AddOfLeaf(0.5)(g, p)


def first_leaf(params, index=0):
    # The law of models that are trained in part has other leaves in front.
    is_partly = isinstance(params, dict) and "trained" in params
    return jax.tree.leaves(params["trained"] if is_partly else params)[index]


def second_leaf(params):
    return first_leaf(params, 1)


ROWS = [
    row(eqopt.Identity),
    row(eqopt.SetToZero),
    row(lambda step_size=0.5: eqopt.Scale(step_size), name="Scale", step_size=0.3),
    row(lambda: eqopt.ScaleBySchedule(LINEAR), name="ScaleBySchedule"),
    row(lambda: eqopt.ScaleBySchedule(halve), name="ScaleBySchedule(function)"),
    row(eqopt.ScaleByLearningRate, at=0.1, learning_rate=0.02),
    row(
        lambda: eqopt.ScaleByLearningRate(LINEAR, flip_sign=False),
        name="ScaleByLearningRate(schedule)",
    ),
    row(lambda max_delta=0.1: eqopt.Clip(max_delta), name="Clip", max_delta=0.2),
    row(eqopt.ClipByGlobalNorm, {"max_norm": 0.5}, max_norm=0.1),
    row(eqopt.AddDecayedWeights, weight_decay=0.1),
    row(
        lambda weight_decay=0.1: eqopt.AddDecayedWeights(weight_decay, is_matrix),
        name="AddDecayedWeights(mask)",
        weight_decay=0.3,
    ),
    row(
        lambda weight_decay=0.1, max_learning_rate=0.5: eqopt.AddDecayedWeights(
            weight_decay,
            cautious=True,
            mode="corrected",
            learning_rate=LINEAR,
            max_learning_rate=max_learning_rate,
        ),
        name="AddDecayedWeights(cautious, corrected)",
        weight_decay=0.3,
        max_learning_rate=0.4,
    ),
    row(lambda decay=0.9: eqopt.Trace(decay), name="Trace", decay=0.8),
    row(lambda: eqopt.Trace(0.9, nesterov=True), name="Trace(nesterov)"),
    row(lambda decay=0.9: eqopt.EMA(decay), name="EMA", decay=0.8),
    row(
        lambda decay=0.9: eqopt.EMA(decay, False, "float32"),
        name="EMA(biased, float32)",
        decay=0.8,
    ),
    row(eqopt.Grokfast, alpha=0.8, lamb=0.5),
    row(lambda: eqopt.ApplyEvery(2), name="ApplyEvery"),
    row(eqopt.AdaptiveGradClip, {"clipping": 0.1}, clipping=0.05, eps=0.1),
    row(lambda: eqopt.AdaptiveGradClip(0.1, axis=()), name="AdaptiveGradClip(axis)"),
    row(eqopt.AdaClipGN, gamma1=0.5, gamma2=0.8, gamma3=0.9, eps=1e-2, eta_min=0.3),
    row(lambda: eqopt.ClipByHistory(4), name="ClipByHistory"),
    row(
        lambda sigma=0.1, min_history=2: eqopt.ClipByHistory(5, sigma, min_history),
        name="ClipByHistory(tight)",
        sigma=0.2,
    ),
    row(eqopt.Overwrite),
    row(eqopt.Centralize),
    row(eqopt.Normalize),
    row(eqopt.NormalizeByUpdateNorm, scale_factor=0.5, eps=0.1),
    row(eqopt.KeepParamsNonnegative),
    row(
        lambda threshold=3.0: Evaluated(
            eqopt.QKClip(first_leaf, second_leaf, threshold)
        ),
        name="QKClip",
        threshold=2.0,
    ),
    row(eqopt.ZeroNaNs),
    row(
        lambda **data: Evaluated(eqopt.ReduceLROnPlateau(patience=1, **data)),
        name="ReduceLROnPlateau",
        factor=0.5,
        rtol=0.1,
        atol=0.1,
        min_scale=0.2,
    ),
    row(
        lambda: Evaluated(
            eqopt.ReduceLROnPlateau(
                0.5, 1, 1.0, cooldown=1, accumulation_size=2, min_scale=0.3
            )
        ),
        name="ReduceLROnPlateau(means, cooldown)",
        exempt={
            "test_a_nan_that_is_left_out_leaves_no_trace": "the best loss is infinity "
            "until the first one is complete, and here it takes two steps"
        },
    ),
    row(lambda: eqopt.Stateless(add_half), name="Stateless"),
    row(
        lambda factor=0.5: eqopt.Stateless(Add(factor)),
        name="Stateless(Module)",
        factor=0.3,
    ),
    row(eqopt.StatelessWithTreeMap, {"f": add_half_of_leaf}),
    row(
        lambda factor=0.5: eqopt.StatelessWithTreeMap(AddOfLeaf(factor)),
        name="StatelessWithTreeMap(Module)",
        factor=0.3,
        exempt={"test_integers_are_floats": "its function is not converted"},
    ),
    row(eqopt.ScaleByDistanceOverGradients, reps_rel=1e-2, eps=1e-3, global_scale=-0.5),
    row(
        lambda: eqopt.ScaleByDistanceOverGradients(param_dtype=None),
        name="ScaleByDistanceOverGradients(as the parameters)",
    ),
    row(
        lambda: Evaluated(eqopt.HutchinsonDiagHessian(1)), name="HutchinsonDiagHessian"
    ),
]
