"""Control variates: unbiased, of smaller variance, with the best coefficients."""

import itertools
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from eqopt.monte_carlo import (
    MovingAvgBaselineState,
    MultiNormalDiag,
    control_delta_method,
    control_variates_jacobians,
    estimate_control_variate_coefficients,
    moving_avg_baseline,
    pathwise_jacobians,
    score_function_jacobians,
)

from ..interpreter import interpreted
from .problems import (
    ESTIMATORS,
    PARAMS,
    PROBLEMS,
    QUADRATIC,
    assert_mean,
    gradient,
    traced,
)


pytestmark = pytest.mark.slow


SMOOTH = [name for name in PROBLEMS if PROBLEMS[name].is_smooth]
# A baseline that is good for none of the problems, so that its terms count.
STATE = MovingAvgBaselineState(jnp.array(1.2), jnp.array(0.6), jnp.array(7))


with_coefficients = partial(control_variates_jacobians, estimate_cv_coeffs=True)


def own_control_variate(function):
    """h = x (mu + sigma) + (x - mu)^2, which depends on the parameters by itself, too."""

    def cv(params, x, state):
        loc, scale = params[0], jnp.exp(params[1])
        return jnp.sum(x * (loc + scale) + (x - loc) ** 2)

    def expected_cv(params, state):
        loc, scale = params[0], jnp.exp(params[1])
        return jnp.sum(loc * (loc + scale) + scale**2)

    return cv, expected_cv, lambda params, samples, state: state


CONTROL_VARIATES = {
    "delta": (control_delta_method, None),
    "baseline": (moving_avg_baseline, STATE),
    "own": (own_control_variate, None),
}


def with_control_variate(estimator, control_variate, **kwargs):
    make, state = CONTROL_VARIATES[control_variate]

    def jacobians(function, *args):
        return control_variates_jacobians(
            function,
            make,
            ESTIMATORS[estimator],
            *args,
            control_variate_state=state,
            **kwargs,
        )[0]

    return traced(jacobians)


WITH = {
    (estimator, control_variate, estimated): with_control_variate(
        estimator, control_variate, estimate_cv_coeffs=estimated
    )
    for estimator, control_variate, estimated in itertools.product(
        ESTIMATORS, CONTROL_VARIATES, (False, True)
    )
}


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("control_variate", CONTROL_VARIATES)
def test_unbiased(estimator, control_variate):
    """Each meets each. Every second one estimates coefficients, so they meet both."""
    place = [*ESTIMATORS].index(estimator) + [*CONTROL_VARIATES].index(control_variate)
    case = estimator, control_variate, bool(place % 2)
    for problem in SMOOTH:
        assert_mean(WITH[case](problem, seed=1), gradient(problem), 1e-4)


@pytest.mark.parametrize("problem", QUADRATIC)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_delta_method_is_exact_for_quadratic_functions(estimator, problem):
    """Each estimate is equal to the gradient, so the variance is zero."""
    found = WITH[estimator, "delta", False](problem)
    for jacobians, exact in zip(found, gradient(problem), strict=True):
        expected = jnp.broadcast_to(exact, jacobians.shape)
        # The two functions cancel to rounding errors of their values.
        np.testing.assert_allclose(jacobians, expected, atol=2e-3)
        np.testing.assert_allclose(jnp.mean(jacobians, axis=0), exact, atol=1e-5)


def test_delta_method_of_other_parameters():
    """A model that gives the distribution, and its gradient, exact in one sample."""
    model = eqx.nn.Linear(2, 4, key=jr.key(4))
    x = jnp.array([0.3, 0.6])
    build = lambda model: MultiNormalDiag(*model(x).reshape(2, 2))
    found, _ = eqx.filter_jit(control_variates_jacobians)(
        PROBLEMS["quadratic"].function,
        partial(control_delta_method, dist_builder=build),
        score_function_jacobians,
        model,
        build,
        5,
        2,
    )

    def exact(model):
        dist = build(model)
        return PROBLEMS["quadratic"].expectation(dist.mean, dist.scale**2)

    expected = eqx.filter_grad(exact)(model)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, jnp.stack([b, b]), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_one_sample_with_a_fresh_baseline_is_unbiased(seed):
    """If the baseline were updated first, as in Optax, all estimates would be zero."""
    args = (score_function_jacobians, PARAMS, MultiNormalDiag, seed, 1)
    found, _ = interpreted(control_variates_jacobians)(
        jnp.sum, moving_avg_baseline, *args
    )
    plain = interpreted(args[0])(jnp.sum, *args[1:])
    for a, b in zip(found, plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


BETAS = [(True, True), (True, False), (False, True), (False, False)]


@pytest.mark.parametrize(("zero_debias", "use_heuristic"), BETAS)
@pytest.mark.parametrize("decay", [0.0, 0.3, 1.0])
def test_moving_average(decay, zero_debias, use_heuristic):
    """Against the sums written out, also where nothing is ever averaged."""
    cv, expected_cv, update_state = moving_avg_baseline(
        jnp.sum, decay, zero_debias, use_heuristic
    )
    values = [3.0, -1.0, 2.5, 8.0]
    weights, state = np.zeros(0), None
    assert cv(PARAMS, jnp.ones(2), None) == 0
    for t, value in enumerate(values):
        samples = jnp.array([[value, 0.0], [0.0, value]])
        state = update_state(PARAMS, samples, state)
        beta = min(decay, (1 + t) / (10 + t)) if use_heuristic else decay
        weights = np.append(weights * beta, 1 - beta)
        average = weights @ values[: t + 1]
        if zero_debias:
            average = average / weights.sum() if weights.sum() else 0.0
        for found in (cv(PARAMS, samples[0], state), expected_cv(PARAMS, state)):
            np.testing.assert_allclose(found, average, rtol=1e-5, atol=1e-6)
    if decay == 0:
        assert expected_cv(PARAMS, state) == pytest.approx(8.0)


def test_a_mean_that_is_not_finite_is_left_out():
    _, expected_cv, update_state = moving_avg_baseline(lambda x: 1 / x[0])
    good, bad = jnp.array([[2.0, 0.0]]), jnp.array([[2.0, 0.0], [0.0, 0.0]])
    state = update_state(PARAMS, good, None)
    again = update_state(PARAMS, bad, state)
    assert eqx.tree_equal(state, again)
    assert expected_cv(PARAMS, again) == 0.5


@pytest.mark.parametrize(
    ("eps", "expected"),
    [(0, 0.5), (1e-3, 0.5), (1e6, 0.0)],
)
def test_coefficient_of_a_multiple(eps, expected):
    """h = 2 f: half of it is all that is needed."""
    twice = lambda f: (
        lambda params, x, state: 2 * f(x),
        lambda params, state: (
            2 * PROBLEMS["cosine"].expectation(*_mean_variance(params))
        ),
        lambda params, samples, state: state,
    )
    args = (PROBLEMS["cosine"].function, twice, pathwise_jacobians, PARAMS)
    found = interpreted(partial(estimate_control_variate_coefficients, eps=eps))(
        *args, MultiNormalDiag, 13, 50
    )
    for beta in found:
        np.testing.assert_allclose(beta, expected, atol=1e-3)
    if eps == 1e-3:
        jacobians, _ = interpreted(with_coefficients)(*args, MultiNormalDiag, 14, 5)
        for j, exact in zip(jacobians, gradient("cosine"), strict=True):
            expected = jnp.broadcast_to(exact, j.shape)
            np.testing.assert_allclose(j, expected, atol=5e-3)


def _mean_variance(params):
    return params[0], jnp.exp(2 * params[1])


@pytest.mark.parametrize("eps", [0, 1e-3])
@pytest.mark.parametrize(
    ("make", "estimator"),
    [
        (moving_avg_baseline, pathwise_jacobians),
        (moving_avg_baseline, ESTIMATORS["measure"]),
        # Not even a baseline yet: h is 0.
        (moving_avg_baseline, score_function_jacobians),
    ],
)
def test_control_variate_that_does_not_vary(make, estimator, eps):
    """There is no division by zero, and it does not change the estimates."""
    args = (estimator, PARAMS, MultiNormalDiag)
    found = interpreted(partial(estimate_control_variate_coefficients, eps=eps))(
        jnp.sum, make, *args, 15, 10
    )
    assert [float(beta) for beta in found] == [0.0, 0.0]
    estimated, _ = interpreted(with_coefficients)(jnp.sum, make, *args, 16, 5)
    assert all(jnp.isfinite(j).all() for j in estimated)
    found, _ = interpreted(control_variates_jacobians)(jnp.sum, make, *args, 16, 5)
    expected = interpreted(estimator)(jnp.sum, *args[1:], 16, 5)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_coefficients_have_samples_of_their_own():
    """On average over keys the gradient from few samples is right, too."""
    problem = PROBLEMS["cubic"]

    @jax.jit
    def means(keys):
        def one(key):
            jacobians, _ = control_variates_jacobians(
                problem.function,
                control_delta_method,
                score_function_jacobians,
                PARAMS,
                MultiNormalDiag,
                key,
                2,
                estimate_cv_coeffs=True,
                estimate_cv_coeffs_num_samples=2,
            )
            return jax.tree.map(lambda j: jnp.mean(j, axis=0), jacobians)

        return jax.vmap(one)(keys)

    assert_mean(means(jr.split(jr.key(17), 10_000)), gradient("cubic"))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float64])
def test_dtypes(dtype, x64):
    with x64():
        params = tuple(jnp.asarray(np.asarray(p), dtype) for p in PARAMS)
        for make in (control_delta_method, moving_avg_baseline):
            found, _ = interpreted(with_coefficients)(
                lambda x: jnp.sum(x * x),
                make,
                score_function_jacobians,
                params,
                MultiNormalDiag,
                jr.key(18),
                10,
            )
            assert [j.dtype for j in found] == [dtype] * 2
            assert all(jnp.isfinite(j).all() for j in found)
