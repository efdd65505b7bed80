"""Wrong arguments: each message names the function, the argument, and the way out."""

import re
from functools import partial
from types import SimpleNamespace

import jax.numpy as jnp
import pytest

from eqopt.monte_carlo import (
    MultiNormalDiag,
    control_delta_method,
    control_variates_jacobians,
    estimate_control_variate_coefficients,
    measure_valued_estimation_mean,
    measure_valued_estimation_std,
    measure_valued_jacobians,
    moving_avg_baseline,
    pathwise_jacobians,
    score_function_jacobians,
)


ONES = jnp.ones(2)
PARAMS = (ONES, ONES)
ESTIMATORS = [score_function_jacobians, pathwise_jacobians, measure_valued_jacobians]
SCORE, PATHWISE, _ = ESTIMATORS


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
    *(
        case
        for fun in ESTIMATORS
        for case in (
            (
                partial(_run, fun, lambda x: x),
                ValueError,
                [
                    f"{fun.__name__}:",
                    "`function`",
                    "must be a real number",
                    "(2,)",
                    "Sum",
                ],
            ),
            (
                partial(_run, fun, lambda x: (jnp.sum(x), None)),
                ValueError,
                ["`function`", "of type tuple"],
            ),
            (
                partial(_run, fun, lambda x: jnp.sum(x).astype(complex)),
                ValueError,
                ["`function`", "complex64"],
            ),
            (
                partial(_run, fun, num_samples=0),
                ValueError,
                [fun.__name__, "`num_samples`", "at least 1", "0"],
            ),
            (
                partial(_run, fun, num_samples=True),
                ValueError,
                ["`num_samples`", "True"],
            ),
            (partial(_run, fun, num_samples=1.5), TypeError, ["num_samples", "1.5"]),
            (
                partial(_run, fun, params=(1.0, 2.0)),
                TypeError,
                [f"{fun.__name__}: `params`", "floating-point array", "(1.0, 2.0)"],
            ),
            (
                partial(_run, fun, params=(ONES, ONES.astype(complex))),
                TypeError,
                [f"{fun.__name__}: `params`", "complex64", "[1]"],
            ),
            (
                partial(_run, fun, dist_builder=lambda loc, log_scale: loc),
                TypeError,
                [f"{fun.__name__}: `dist_builder`", "without", "`sample(key)`"],
            ),
        )
    ),
    (
        lambda: _run(
            SCORE, dist_builder=lambda *_: SimpleNamespace(sample=lambda k: k)
        ),
        TypeError,
        ["`dist_builder`", "SimpleNamespace", "without `log_prob(x)`"],
    ),
    (
        lambda: _run(SCORE, dist_builder=lambda *_: APART),
        ValueError,
        ["`log_prob`", "must be a real number", "(2,)", "belong to one sample"],
    ),
    (
        lambda: _run(PATHWISE, dist_builder=lambda *_: INTEGERS),
        TypeError,
        ["pathwise_jacobians: samples", "int32", "score_function_jacobians"],
    ),
    (
        lambda: _run(PATHWISE, lambda x: jnp.sum(x > 0)),
        TypeError,
        ["pathwise_jacobians: `function`", "int32", "score_function_jacobians"],
    ),
    (
        lambda: _run(measure_valued_jacobians, dist_builder=lambda *_: APART),
        TypeError,
        ["`dist_builder` must return", "MultiNormalDiag`, but returned", "Namespace"],
    ),
    *(
        (
            partial(fun, jnp.sum, APART, 0, 3),
            TypeError,
            [
                f"{fun.__name__}: `dist` must be",
                "MultiNormalDiag`, but is",
                "Namespace",
            ],
        )
        for fun in (measure_valued_estimation_mean, measure_valued_estimation_std)
    ),
    *(
        (
            partial(fun, jnp.sum, NORMAL, 0, -1),
            ValueError,
            [f"{fun.__name__}: `num_samples`", "-1"],
        )
        for fun in (measure_valued_estimation_mean, measure_valued_estimation_std)
    ),
    (
        lambda: MultiNormalDiag(ONES, jnp.ones(3)),
        ValueError,
        ["`loc` and `log_scale`", "(2,) and (3,)", "broadcast_to"],
    ),
    (
        lambda: MultiNormalDiag([0.0], ONES),
        TypeError,
        ["`loc`", "has type list", "jnp.asarray"],
    ),
    (
        lambda: MultiNormalDiag(ONES, jnp.ones(2, int)),
        TypeError,
        ["`log_scale`", "int32", "astype"],
    ),
    (
        lambda: MultiNormalDiag(ONES.astype(complex), ONES),
        TypeError,
        ["`loc`", "complex64"],
    ),
    (
        lambda: NORMAL.log_prob(jnp.ones((2, 3))),
        ValueError,
        ["MultiNormalDiag.log_prob", "`x`", "(2,)", "(2, 3)"],
    ),
    (lambda: NORMAL.log_prob(1.0), ValueError, ["`x`", "(2,)", "()"]),
    (
        lambda: _variates(make=lambda function: function),
        TypeError,
        ["`control_variate_from_function`", "three functions", "`expected_cv("],
    ),
    (
        lambda: _variates(make=lambda function: (1, 2, 3)),
        TypeError,
        ["`control_variate_from_function`", "(1, 2, 3)"],
    ),
    (
        lambda: _variates(make=_made(cv=ONES)),
        ValueError,
        ["control_variates_jacobians: `cv`", "must be a real number", "(2,)"],
    ),
    (
        lambda: _variates(make=_made(expected_cv=ONES)),
        ValueError,
        ["`expected_cv`", "(2,)"],
    ),
    (
        lambda: _variates(estimator=lambda *args: ONES),
        ValueError,
        ["`grad_estimator(...)` has another tree structure", "num_samples"],
    ),
    (
        lambda: _variates(estimator=lambda *args: (ONES, ONES)),
        ValueError,
        ["`grad_estimator` returned", "(2,)", "`[0]`", "(3, 2) was expected"],
    ),
    (
        lambda: _variates(estimate_cv_coeffs=True, estimate_cv_coeffs_num_samples=1),
        ValueError,
        ["estimate_control_variate_coefficients: `num_samples`", "at least 2", "1"],
    ),
    (lambda: _coefficients(1), ValueError, ["`num_samples`", "at least 2", "1"]),
    (lambda: _coefficients(eps=-1.0), ValueError, ["`eps`", "[0, inf)", "-1.0"]),
    (lambda: _coefficients(eps=ONES), ValueError, ["`eps`", "0-d", "(2,)"]),
    (
        lambda: moving_avg_baseline(jnp.sum, 1.5),
        ValueError,
        ["moving_avg_baseline: `decay`", "[0, 1]", "1.5"],
    ),
    (lambda: moving_avg_baseline(jnp.sum, -0.1), ValueError, ["`decay`", "-0.1"]),
    (
        lambda: moving_avg_baseline(jnp.sum, float("nan")),
        ValueError,
        ["`decay`", "nan"],
    ),
    (lambda: moving_avg_baseline(jnp.sum, ONES), ValueError, ["`decay`", "(2,)"]),
    (
        lambda: moving_avg_baseline(lambda x: x)[2](PARAMS, jnp.ones((3, 2)), None),
        ValueError,
        ["moving_avg_baseline", "`function`", "(2,)"],
    ),
    (
        lambda: control_delta_method(lambda x: x)[0](PARAMS, ONES, None),
        ValueError,
        ["control_delta_method", "`function`", "(2,)"],
    ),
    (
        lambda: control_delta_method(lambda x: jnp.sum(x > 0))[1](PARAMS, None),
        TypeError,
        ["control_delta_method: `function`", "int32"],
    ),
    (
        lambda: control_delta_method(jnp.sum, lambda *_: APART)[0](PARAMS, ONES, None),
        TypeError,
        ["control_delta_method: `dist_builder` must return", "Namespace"],
    ),
]


@pytest.mark.parametrize(("call", "error", "words"), WRONG)
@pytest.mark.costly
def test_message(call, error, words):
    with pytest.raises(error, match=re.escape(words[0])) as info:
        call()
    for word in words:
        assert word in str(info.value)
