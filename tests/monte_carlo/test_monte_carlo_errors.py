"""Wrong arguments: each message names the function, the argument, and the way out."""

import re
from types import SimpleNamespace

import jax.numpy as jnp
import pytest

from eqopt.monte_carlo import (
    MultiNormalDiag,
    control_variates_jacobians,
    estimate_control_variate_coefficients,
    measure_valued_estimation_mean,
    measure_valued_jacobians,
    moving_avg_baseline,
    pathwise_jacobians,
    score_function_jacobians,
)


ONES = jnp.ones(2)
PARAMS = (ONES, ONES)
SCORE, PATHWISE = score_function_jacobians, pathwise_jacobians


def _run(
    estimator,
    function=jnp.sum,
    params=PARAMS,
    dist_builder=MultiNormalDiag,
    num_samples=3,
):
    return estimator(function, params, dist_builder, 0, num_samples)


def _variates(function=jnp.sum, make=moving_avg_baseline, estimator=SCORE, **kwargs):
    args = (function, make, estimator, PARAMS, MultiNormalDiag, 0, 3)
    return control_variates_jacobians(*args, **kwargs)


def _coefficients(num_samples=3, **kwargs):
    args = (jnp.sum, moving_avg_baseline, SCORE, PARAMS, MultiNormalDiag, 0)
    return estimate_control_variate_coefficients(*args, num_samples, **kwargs)


def _made(**kwargs):
    parts = {"cv": 0.0, "expected_cv": 0.0, **kwargs}
    functions = [lambda *args, out=out: out for out in parts.values()]
    return lambda function: (*functions, lambda params, samples, state: state)


INTEGERS = SimpleNamespace(sample=lambda key: jnp.ones(2, int), log_prob=jnp.sum)
APART = SimpleNamespace(sample=lambda key: ONES, log_prob=lambda x: x)
NORMAL = MultiNormalDiag(ONES, ONES)

WRONG = [
    (
        lambda: _run(PATHWISE, lambda x: x),
        ["pathwise_jacobians:", "`function`", "must be one real number", "f32[2]"],
    ),
    (
        lambda: _run(measure_valued_jacobians, num_samples=0),
        ["measure_valued_jacobians:", "`num_samples`", "at least 1", "0"],
    ),
    (
        lambda: _run(SCORE, params=(1.0, 2.0)),
        ["score_function_jacobians: `params`", "floating-point array", "(1.0, 2.0)"],
    ),
    (lambda: _run(SCORE, params=(ONES, ONES.astype(complex))), ["`params`", "complex"]),
    (
        lambda: _run(SCORE, dist_builder=lambda *_: APART),
        ["`log_prob`", "must be one real number", "f32[2]"],
    ),
    (
        lambda: _run(PATHWISE, dist_builder=lambda *_: INTEGERS),
        ["pathwise_jacobians: `sample`", "i32[2]", "score_function_jacobians"],
    ),
    (
        lambda: _run(PATHWISE, lambda x: jnp.sum(x > 0)),
        ["pathwise_jacobians: `function`", "i32[]", "score_function_jacobians"],
    ),
    (
        lambda: _run(measure_valued_jacobians, dist_builder=lambda *_: APART),
        ["must be a `MultiNormalDiag`", "namespace"],
    ),
    (
        lambda: measure_valued_estimation_mean(jnp.sum, APART, 0, 3),
        ["measure_valued_estimation_mean: `dist`", "`MultiNormalDiag`"],
    ),
    (lambda: MultiNormalDiag(ONES, jnp.ones(3)), ["MultiNormalDiag", "`log_scale`"]),
    (
        lambda: _variates(make=_made(cv=ONES)),
        ["control_variates_jacobians: `cv`", "must be one real number", "f32[2]"],
    ),
    (
        lambda: _variates(estimator=lambda *args: ONES),
        ["`grad_estimator(...)` has another tree structure", "a row for each sample"],
    ),
    (
        lambda: _variates(estimator=lambda *args: (ONES, ONES)),
        ["`grad_estimator(...)`", "`[0]` ((2,) against (3, 2))"],
    ),
    (
        lambda: _variates(estimate_cv_coeffs=True, estimate_cv_coeffs_num_samples=1),
        ["control_variates_jacobians: `num_samples`", "at least 2", "1"],
    ),
    (lambda: _coefficients(eps=-1.0), ["`eps`", "[0, inf)", "-1.0"]),
    (
        lambda: moving_avg_baseline(jnp.sum, 1.5),
        ["moving_avg_baseline: `decay`", "[0, 1]", "1.5"],
    ),
]


@pytest.mark.parametrize(("call", "words"), WRONG)
@pytest.mark.costly
def test_message(call, words):
    with pytest.raises((ValueError, TypeError), match=re.escape(words[0])) as info:
        call()
    for word in words:
        assert word in str(info.value)
