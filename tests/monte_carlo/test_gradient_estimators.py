"""Against closed forms, within four standard errors."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from eqopt.monte_carlo import (
    AbstractDistribution,
    MultiNormalDiag,
    measure_valued_estimation_mean,
    measure_valued_estimation_std,
    score_function_jacobians,
)

from ..interpreter import interpreted
from .problems import (
    ESTIMATORS,
    PARAMS,
    PROBLEMS,
    TRACED,
    assert_mean,
    gradient,
)


pytestmark = pytest.mark.slow


estimators = pytest.mark.parametrize("estimator", ESTIMATORS)
CASES = [
    (estimator, problem)
    for estimator in ESTIMATORS
    for problem in PROBLEMS
    if PROBLEMS[problem].is_smooth or estimator != "pathwise"
]


@pytest.mark.parametrize(("estimator", "problem"), CASES)
def test_unbiased(estimator, problem):
    jacobians = TRACED[estimator](problem)
    assert isinstance(jacobians, tuple)
    assert_mean(jacobians, gradient(problem))
    # Were the variance large, the mean would say nothing.
    errors = jnp.concatenate([jnp.std(j, axis=0) / 100 for j in jacobians])
    size = jnp.linalg.norm(jnp.concatenate(gradient(problem)))
    assert (errors < 0.15 * size).all()


def test_coupling_by_the_mean():
    """It doubles the variance for a linear function, and removes that for an even one."""
    coupled, uncoupled = (
        TRACED[name]("linear")[0] for name in ("measure", "uncoupled")
    )
    ratio = jnp.var(coupled, axis=0) / jnp.var(uncoupled, axis=0)
    np.testing.assert_allclose(ratio, jnp.full(2, 2.0), rtol=0.1)
    dist = MultiNormalDiag(*PARAMS)
    even = lambda x: jnp.sum(jnp.cos(x - PARAMS[0]))
    found = eqx.filter_jit(measure_valued_estimation_mean)(even, dist, 3, 20)
    np.testing.assert_allclose(found, jnp.zeros((20, 2)), atol=1e-5)


@pytest.mark.parametrize(
    ("estimate", "of_exact"),
    [
        (measure_valued_estimation_mean, lambda exact: exact[0]),
        # By the scale itself, not by its logarithm.
        (measure_valued_estimation_std, lambda exact: exact[1] / jnp.exp(PARAMS[1])),
    ],
)
@pytest.mark.parametrize("coupling", [True, False])
def test_parts_of_the_measure_valued_estimate(estimate, of_exact, coupling):
    function = PROBLEMS["cosine"].function
    dist = MultiNormalDiag(*PARAMS)
    found = interpreted(estimate)(function, dist, 1, 10_000, coupling)
    assert found.shape == (10_000, 2)
    assert_mean(found, of_exact(gradient("cosine")))


@pytest.mark.parametrize("shape", [(), (2, 2)])
@estimators
def test_shapes_of_events(estimator, shape):
    params = (jnp.full(shape, 0.5), jnp.zeros(shape))
    function = lambda x: jnp.sum(x**2)
    fun = interpreted(ESTIMATORS[estimator])
    found = fun(function, params, MultiNormalDiag, jr.key(2), 3000)
    assert [j.shape for j in found] == [(3000, *shape)] * 2
    assert_mean(found, (jnp.full(shape, 1.0), jnp.full(shape, 2.0)))


class Amortized(eqx.Module):
    """A model that returns a distribution, with a leaf that is not a parameter."""

    loc: eqx.nn.Linear
    log_scale: jax.Array
    name: str = "encoder"

    def __call__(self, x):
        return MultiNormalDiag(self.loc(x), jnp.tanh(self.log_scale) * x)


@estimators
def test_parameters_that_are_a_model(estimator):
    model = Amortized(eqx.nn.Linear(2, 2, key=jr.key(3)), jnp.array([0.3, -0.2]))
    x = jnp.array([0.7, -0.4])
    problem = PROBLEMS["quadratic"]

    def exact(model):
        dist = model(x)
        return problem.expectation(dist.mean, dist.scale**2)

    expected = eqx.filter_grad(exact)(model)
    found = interpreted(ESTIMATORS[estimator])(
        problem.function, model, lambda model: model(x), jr.key(4), 10_000
    )
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    assert found.name is None
    assert_mean(found, expected)


class Bernoulli(AbstractDistribution):
    logits: jax.Array

    def sample(self, key):
        return jr.bernoulli(key, jax.nn.sigmoid(self.logits)).astype(jnp.int32)

    def log_prob(self, x):
        signs = (2 * x - 1).astype(self.logits.dtype)
        return jnp.sum(jax.nn.log_sigmoid(signs * self.logits))


def test_discrete_samples():
    """The mean of an integer function of bits."""
    logits = jnp.array([0.5, -1.0, 0.0])
    weights = jnp.array([1, 2, 4])
    jacobians = eqx.filter_jit(score_function_jacobians)(
        lambda bits: jnp.sum(bits * weights), (logits,), Bernoulli, jr.key(5), 10_000
    )
    p = jax.nn.sigmoid(logits)
    assert_mean(jacobians, (p * (1 - p) * weights.astype(jnp.float32),))


@estimators
def test_derivative_by_the_function(estimator):
    """The derivative of the gradient of c E[x^2], which is 2 c mu, by c."""

    @jax.jit
    def slopes(key):
        def mean_jacobian(c):
            jacobians = ESTIMATORS[estimator](
                lambda x: c * (x @ x), PARAMS, MultiNormalDiag, key, 1
            )
            return jacobians[0][0]

        return jax.jacobian(mean_jacobian)(jnp.array(3.0))

    assert_mean(jax.jit(jax.vmap(slopes))(jr.split(jr.key(10), 5000)), 2 * PARAMS[0])


@estimators
def test_samples_are_independent(estimator):
    """They depend neither on one another nor on another key, and a key repeats them."""
    found, other = (TRACED[estimator]("cosine", seed)[0] for seed in (11, 12))
    np.testing.assert_array_equal(found, TRACED[estimator]("cosine", 11)[0])
    count = len(jnp.unique(found[:, 0]))
    assert count > 0.99 * len(found)  # floats of a bounded function may be equal
    columns = jnp.concatenate(
        [found, other, found[::-1], jnp.roll(found, 1, 0)], axis=1
    )
    correlations = np.corrcoef(columns, rowvar=False)
    for i in (2, 3, 4, 6):  # another key, and other samples of the same
        assert abs(correlations[0, i]) < 4 / len(found) ** 0.5


def _jacobians_of_squares(estimator, params, key, num_samples=200):
    fun = jax.jit(
        lambda params: ESTIMATORS[estimator](
            lambda x: jnp.sum(x * x), params, MultiNormalDiag, key, num_samples
        )
    )
    return fun(params), (2 * params[0], 2 * jnp.exp(2 * params[1]))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float64])
@estimators
def test_dtypes(estimator, dtype, x64):
    with x64():
        params = tuple(jnp.asarray(np.asarray(p), dtype) for p in PARAMS)
        found, exact = _jacobians_of_squares(estimator, params, jr.key(14))
        assert [j.dtype for j in found] == [dtype, dtype]
        wide = lambda tree: jax.tree.map(lambda j: j.astype(jnp.float32), tree)
        assert_mean(wide(found), wide(exact), 0.02)


@pytest.mark.parametrize("log_scale", [-20.0, 20.0])
@estimators
def test_extreme_scales(estimator, log_scale):
    """Samples far from each other, or all but the same, stay finite."""
    params = (jnp.array([1.0]), jnp.array([log_scale]))
    found, _ = _jacobians_of_squares(estimator, params, jr.key(18), 50)
    assert all(jnp.isfinite(j).all() for j in found)


@pytest.mark.parametrize(
    ("estimator", "size", "argument"), [("score", 1e-3, 0), ("uncoupled", 1.0, 1)]
)
def test_products_in_float16(estimator, size, argument):
    """A factor may exceed the range of float16, and the product not.

    For the score, this is the slope by the mean; for measures, an estimate by the scale.
    """
    params = tuple(jnp.array([x], jnp.float16) for x in (0.0, -12.0))
    wide = tuple(x.astype(jnp.float32) for x in params)
    step = lambda x: size * jnp.sum((x > 0).astype(jnp.float32))
    found, expected = (
        ESTIMATORS[estimator](step, p, MultiNormalDiag, 18, 50)[argument]
        for p in (params, wide)
    )
    assert found.dtype == jnp.float16
    assert jnp.isfinite(found).all()
    tolerance = 0.05 * float(jnp.max(jnp.abs(expected)))
    np.testing.assert_allclose(found.astype(jnp.float32), expected, atol=tolerance)


@estimators
def test_numpy_arrays_in_float64(estimator):
    params = tuple(np.asarray(x, np.float64) for x in PARAMS)
    call = lambda p: ESTIMATORS[estimator](jnp.sum, p, MultiNormalDiag, 18, 5)
    for found, expected in zip(call(params), call(PARAMS), strict=True):
        assert found.dtype == jnp.float32
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
