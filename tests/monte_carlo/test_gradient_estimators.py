"""Against closed forms, within four standard errors."""

from functools import partial
from types import SimpleNamespace

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
    measure_valued_jacobians,
    pathwise_jacobians,
    score_function_jacobians,
)

from .problems import (
    ESTIMATORS,
    PARAMS,
    PROBLEMS,
    TRACED,
    assert_mean,
    gradient,
    variance,
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


@pytest.mark.parametrize("problem", ["linear", "quadratic", "cosine", "step"])
def test_coupling_reduces_the_variance(problem):
    coupled, uncoupled = (TRACED[name](problem) for name in ("measure", "uncoupled"))
    assert variance(coupled) < 0.8 * variance(uncoupled)


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


@pytest.mark.parametrize("problem", ["linear", "quadratic", "cosine", "step"])
def test_score_function_has_the_largest_variance(problem):
    for other in ("pathwise", "measure"):
        if (other, problem) in CASES:
            found = variance(TRACED[other](problem))
            assert found < variance(TRACED["score"](problem))


@pytest.mark.parametrize(
    ("estimate", "of_exact"),
    [
        (measure_valued_estimation_mean, lambda exact: exact[0]),
        # By the scale itself, not by its logarithm.
        (measure_valued_estimation_std, lambda exact: exact[1] / jnp.exp(PARAMS[1])),
    ],
)
@pytest.mark.parametrize(
    "coupling", [True, pytest.param(False, marks=pytest.mark.slow)]
)
def test_parts_of_the_measure_valued_estimate(estimate, of_exact, coupling):
    function = PROBLEMS["cosine"].function
    dist = MultiNormalDiag(*PARAMS)
    found = eqx.filter_jit(estimate)(function, dist, 1, 10_000, coupling)
    assert found.shape == (10_000, 2)
    assert_mean(found, of_exact(gradient("cosine")))


slow_but_for_score = pytest.mark.parametrize(
    "estimator",
    ["score", *(pytest.param(e, marks=pytest.mark.slow) for e in list(ESTIMATORS)[1:])],
)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(), (1,), (2, 2)])
@estimators
def test_shapes_of_events(estimator, shape):
    params = (jnp.full(shape, 0.5), jnp.zeros(shape))
    function = lambda x: jnp.sum(x**2)
    fun = eqx.filter_jit(ESTIMATORS[estimator])
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


@slow_but_for_score
def test_parameters_that_are_a_model(estimator):
    model = Amortized(eqx.nn.Linear(2, 2, key=jr.key(3)), jnp.array([0.3, -0.2]))
    x = jnp.array([0.7, -0.4])
    problem = PROBLEMS["quadratic"]

    def exact(model):
        dist = model(x)
        return problem.expectation(dist.mean, dist.scale**2)

    expected = eqx.filter_grad(exact)(model)
    found = eqx.filter_jit(ESTIMATORS[estimator])(
        problem.function, model, lambda model: model(x), jr.key(4), 10_000
    )
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    assert found.name is None
    assert_mean(found, expected)


TREES = {
    "dict": (
        {"m": PARAMS[0], "s": PARAMS[1]},
        lambda p: MultiNormalDiag(p["m"], p["s"]),
    ),
    "list": (list(PARAMS), MultiNormalDiag),
    "module": (MultiNormalDiag(*PARAMS), lambda dist: dist),
    "array": (jnp.stack(PARAMS), lambda p: MultiNormalDiag(p[0], p[1])),
    "number": ((PARAMS[0], 2), lambda m, k: MultiNormalDiag(m, jnp.zeros(k))),
}


@pytest.mark.parametrize(
    "tree",
    ["dict", *(pytest.param(t, marks=pytest.mark.slow) for t in list(TREES)[1:])],
)
def test_trees_of_parameters(tree):
    params, dist_builder = TREES[tree]
    leaves = [
        jax.tree.leaves(fun(lambda x: x @ x, params, dist_builder, 0, 4))
        for fun in (score_function_jacobians, pathwise_jacobians)
    ]
    shapes = [[(4, *x.shape) for x in jax.tree.leaves(params) if eqx.is_array(x)]] * 2
    assert [[x.shape for x in found] for found in leaves] == shapes
    gradient_of = eqx.filter_grad(lambda p: jnp.sum(jax.tree.leaves(p)[0]))
    found = score_function_jacobians(lambda x: x @ x, params, dist_builder, 0, 4)
    assert jax.tree.structure(found) == jax.tree.structure(gradient_of(params))


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


@pytest.mark.slow
def test_samples_that_are_trees():
    class Pair(AbstractDistribution):
        dist: MultiNormalDiag

        def sample(self, key):
            x = self.dist.sample(key)
            return {"x": x, "sign": x > 0}

        def log_prob(self, x):
            return self.dist.log_prob(x["x"])

    build = lambda *params: Pair(MultiNormalDiag(*params))
    function = lambda x: jnp.sum(jnp.where(x["sign"], x["x"], 0))
    found = [
        jax.jit(lambda f=f: f(function, PARAMS, build, 6, 10_000))()
        for f in (score_function_jacobians, pathwise_jacobians)
    ]
    # The mean of max(x, 0) has the derivative Pr(x > 0) by the mean.
    exact = jax.scipy.stats.norm.cdf(PARAMS[0] / jnp.exp(PARAMS[1]))
    for jacobians in found:
        assert_mean(jacobians[0], exact)


class FromElsewhere:
    """With the arguments that distributions have in other libraries."""

    def __init__(self, mean):
        self.mean = mean

    def sample(self, sample_shape=(), seed=None):
        assert seed is not None
        return self.mean + jr.normal(seed, sample_shape)

    def log_prob(self, x):
        return jax.scipy.stats.norm.logpdf(x, self.mean)


@pytest.mark.slow
def test_distributions_of_others_are_wrapped_in_two_lines():
    def build(mean):
        dist = FromElsewhere(mean)
        return SimpleNamespace(
            sample=lambda key: dist.sample(seed=key), log_prob=dist.log_prob
        )

    for fun in (score_function_jacobians, pathwise_jacobians):
        found = fun(jnp.square, (jnp.array(0.5),), build, 7, 5000)
        assert_mean(found, (jnp.array(1.0),))


@pytest.mark.slow
def test_whole_models_as_functions():
    model = eqx.nn.MLP(2, "scalar", 4, 1, key=jr.key(8))

    @eqx.filter_jit
    def means(model, key):
        return [
            jax.tree.map(
                lambda j: jnp.mean(j, axis=0),
                estimator(model, PARAMS, MultiNormalDiag, key, 2000),
            )
            for estimator in (pathwise_jacobians, measure_valued_jacobians)
        ]

    a, b = means(model, jr.key(9))
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x, y, atol=0.05)


@slow_but_for_score
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


@pytest.mark.slow
@estimators
def test_kinds_of_keys(estimator):
    seed, typed, raw = (
        ESTIMATORS[estimator](jnp.sum, PARAMS, MultiNormalDiag, key, 3)
        for key in (5, jr.key(5), jr.PRNGKey(5))
    )
    for a, b, c in zip(seed, typed, raw, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)


@pytest.mark.slow
@estimators
def test_vmap_over_keys(estimator):
    fun = lambda key: ESTIMATORS[estimator](
        PROBLEMS["bump"].function, PARAMS, MultiNormalDiag, key, 7
    )
    keys = jr.split(jr.key(13), 3)
    batched = jax.jit(jax.vmap(fun))(keys)
    single = jax.jit(fun)(keys[1])
    for a, b in zip(batched, single, strict=True):
        assert a.shape == (3, 7, 2)
        np.testing.assert_allclose(a[1], b, rtol=1e-4, atol=1e-6)


def _jacobians_of_squares(estimator, params, key, num_samples=200):
    fun = jax.jit(
        lambda params: ESTIMATORS[estimator](
            lambda x: jnp.sum(x * x), params, MultiNormalDiag, key, num_samples
        )
    )
    return fun(params), (2 * params[0], 2 * jnp.exp(2 * params[1]))


@pytest.mark.parametrize(
    "dtype", [jnp.bfloat16, pytest.param(jnp.float16, marks=pytest.mark.slow)]
)
@slow_but_for_score
def test_dtypes(estimator, dtype, x64):
    params = tuple(p.astype(dtype) for p in PARAMS)
    with x64():
        found, exact = _jacobians_of_squares(estimator, params, jr.key(14))
    assert [j.dtype for j in found] == [dtype, dtype]
    wide = lambda tree: jax.tree.map(lambda j: j.astype(jnp.float32), tree)
    assert_mean(wide(found), wide(exact), 0.02)


@pytest.mark.slow
@estimators
def test_double_precision(estimator, x64):
    with x64():
        params = tuple(jnp.asarray(np.asarray(p, np.float64)) for p in PARAMS)
        found, exact = _jacobians_of_squares(estimator, params, jr.key(15))
        assert [j.dtype for j in found] == [jnp.float64] * 2
        assert_mean(found, exact)


@pytest.mark.slow
@estimators
def test_mixed_dtypes(estimator):
    params = (PARAMS[0].astype(jnp.bfloat16), PARAMS[1])
    found, _ = _jacobians_of_squares(estimator, params, jr.key(16), 3)
    assert [j.dtype for j in found] == [jnp.bfloat16, jnp.float32]


@pytest.mark.slow
@estimators
def test_arrays_of_numpy(estimator):
    found, expected = (
        ESTIMATORS[estimator](lambda x: x @ x, params, MultiNormalDiag, 17, 3)
        for params in (tuple(np.asarray(p) for p in PARAMS), PARAMS)
    )
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_abstract_evaluation():
    for name, estimator in ESTIMATORS.items():
        fun = partial(estimator, lambda x: x @ x, dist_builder=MultiNormalDiag)
        shapes = eqx.filter_eval_shape(
            lambda p, key, fun=fun: fun(p, key=key, num_samples=5), PARAMS, jr.key(0)
        )
        assert [s.shape for s in shapes] == [(5, 2)] * 2, name


@pytest.mark.slow
@pytest.mark.parametrize("log_scale", [-20.0, 20.0])
@estimators
def test_extreme_scales(estimator, log_scale):
    """Samples far from each other, or all but the same, stay finite."""
    params = (jnp.array([1.0]), jnp.array([log_scale]))
    found, _ = _jacobians_of_squares(estimator, params, jr.key(18), 50)
    assert all(jnp.isfinite(j).all() for j in found)


@pytest.mark.parametrize(
    ("estimator", "size", "argument"),
    [("score", 1e-3, 0), ("uncoupled", 1.0, 1)],
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


def test_pathwise_is_exact_for_a_linear_function():
    found = pathwise_jacobians(lambda x: 3 * jnp.sum(x), PARAMS, MultiNormalDiag, 19, 4)
    np.testing.assert_allclose(found[0], jnp.full((4, 2), 3.0), rtol=1e-6)


@pytest.mark.slow
def test_measure_valued_takes_other_parameters():
    """By the chain rule, for variances instead of logarithms of scales."""
    variances = jnp.exp(2 * PARAMS[1])
    found = jax.jit(
        lambda: measure_valued_jacobians(
            PROBLEMS["quadratic"].function,
            (PARAMS[0], variances),
            lambda m, v: MultiNormalDiag(m, jnp.log(v) / 2),
            20,
            10_000,
        )
    )()
    exact = jax.grad(PROBLEMS["quadratic"].expectation, (0, 1))(PARAMS[0], variances)
    assert_mean(found, exact)
