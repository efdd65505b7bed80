"""Bad input: each message names the place, what was found and expected, and the fix."""

import re

import jax.numpy as jnp
import pytest

import eqopt
from eqopt import aggregating


PARAMS = {"a": jnp.ones(2), "b": jnp.ones(3)}
GRADS = {"a": jnp.ones((4, 2)), "b": jnp.ones((4, 3))}
MEANS = aggregating.AverageIncrementallyUpdates(0, 2)
MOMENTS = aggregating.PerElementMeanAndSumSqDiffGrads(0, 2)
OPT = aggregating.add_mean_variance_to_opt(eqopt.Adam(0.1))
TRACK = aggregating.TrackPerElementMeanAndVarianceWithEMA()


def update(opt, grads=GRADS, state=None, **extra):
    opt.update(grads, opt.init(PARAMS) if state is None else state, PARAMS, **extra)


def scale(batch_size=4, **arguments):
    aggregating.gradient_noise_scale(PARAMS, batch_size, **arguments)


# What is done, and what the message has to say, in this order.
CASES = [
    (
        lambda: update(aggregating.PerElementMeanAndSumSqDiffGrads([1, 1])),
        "PerElementMeanAndSumSqDiffGrads: it takes per-example gradients",
        "along the axes (1, 1), but the array at `['a']` has shape (4, 2)",
    ),
    (
        lambda: update(aggregating.AveragePerElementUpdates((0, 2))),
        "AveragePerElementUpdates: it takes per-example gradients",
        "along the axes (0, 2), but the array at `['a']` has shape (4, 2), for "
        "parameters of shape (2,)",
    ),
    (
        lambda: update(MOMENTS, state=MEANS.init(PARAMS)),
        "PerElementMeanAndSumSqDiffGrads: `state`",
        " PerElementMeanAndSumSqDiffGradsState, but is of type AccumulateAvgUpdatesS",
    ),
    (
        lambda: update(OPT, state=eqopt.Adam(0.1).init(PARAMS)),
        "Process: `state` must be a tuple of 3 states",
        "['Identity', 'PerElementMeanAndSumSqDiffGrads', 'Chain']",
        "is a tuple of 2",
    ),
    (
        lambda: aggregating.add_mean_variance_to_opt(eqopt.SGD(0.1), 1.0),
        "TrackPerElementMeanAndVarianceWithEMA: `ema_decay` must be in [0, 1), but is 1",
    ),
    (
        lambda: update(TRACK, PARAMS),
        "TrackPerElementMeanAndVarianceWithEMA",
        "'sum_sq_diff_grads' and 'sample_size'",
    ),
    (
        lambda: update(OPT, {"a": jnp.ones((1, 2)), "b": jnp.ones((1, 3))}),
        "`sample_size` must be in [2, inf), but is 1. Use larger batches",
    ),
    (
        lambda: aggregating.get_unbiased_mean_and_variance_ema(()),
        "`state` has no PerElementMeanAndVarianceEMAState",
        "add_mean_variance_to_opt",
    ),
    (
        scale,
        "gradient_noise_scale: pass exactly one of `variance_grads` and "
        "`mean_squared_norm`",
    ),
    (
        lambda: scale(1, mean_squared_norm=1.0),
        "`small_batch_size` must be in (0, 1), but is 1",
    ),
    (
        lambda: update(MEANS, {**GRADS, "b": jnp.ones((5, 3))}),
        "AverageIncrementallyUpdates: it takes per-example gradients",
        "`['b']` has shape (5, 3), for parameters of shape (3,), and `['a']` has 4 ex",
    ),
    (
        lambda: update(TRACK, PARAMS, sum_sq_diff_grads=[1], sample_size=2),
        "`sum_sq_diff_grads` has another tree structure than `updates`",
    ),
    (
        lambda: scale(variance_grads={"a": jnp.ones(2)}),
        "`variance_grads` has another tree structure than `updates`",
    ),
]


@pytest.mark.parametrize("case", CASES)
def test_message(case):
    call, *phrases = case
    pattern = ".*".join(re.escape(phrase) for phrase in phrases)
    with pytest.raises((TypeError, ValueError, KeyError), match=f"(?s){pattern}"):
        call()
