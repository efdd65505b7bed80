"""Functions of two normal variables whose expectations are known in closed form."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
from jax import lax

from eqopt.monte_carlo import (
    MultiNormalDiag,
    measure_valued_jacobians,
    pathwise_jacobians,
    score_function_jacobians,
)

from ..interpreter import interpreted


PARAMS = (jnp.array([0.4, -0.3]), jnp.array([-0.5, 0.2]))
ESTIMATORS = {
    "score": score_function_jacobians,
    "pathwise": pathwise_jacobians,
    "measure": measure_valued_jacobians,
    "uncoupled": partial(measure_valued_jacobians, coupling=False),
}


class Problem(NamedTuple):
    """`expectation` is the mean of `function`, as a function of mean and variance."""

    function: Callable
    expectation: Callable
    is_smooth: bool = True


A = jnp.array([1.5, -0.7])
PROBLEMS = {
    "linear": Problem(lambda x: A @ x + 1, lambda m, v: A @ m + 1),
    "quadratic": Problem(
        lambda x: A @ (x - 1) ** 2, lambda m, v: A @ ((m - 1) ** 2 + v)
    ),
    "product": Problem(lambda x: x[0] * x[1], lambda m, v: m[0] * m[1]),
    "cubic": Problem(lambda x: jnp.sum(x**3), lambda m, v: jnp.sum(m**3 + 3 * m * v)),
    "cosine": Problem(
        lambda x: jnp.sum(jnp.cos(A * x)),
        lambda m, v: jnp.sum(jnp.cos(A * m) * jnp.exp(-A * A * v / 2)),
    ),
    "bump": Problem(
        lambda x: jnp.exp(-0.5 * jnp.sum(x * x)),
        lambda m, v: jnp.prod(jnp.exp(-m * m / (2 + 2 * v)) / jnp.sqrt(1 + v)),
    ),
    "step": Problem(
        lambda x: jnp.sum((x > A / 3).astype(jnp.float32)),
        lambda m, v: jnp.sum(jax.scipy.stats.norm.cdf((m - A / 3) / jnp.sqrt(v))),
        is_smooth=False,
    ),
}
QUADRATIC = ["linear", "quadratic", "product"]


def gradient(name):
    """The gradient of the expectation with respect to the parameters."""
    expectation = PROBLEMS[name].expectation
    return jax.grad(lambda p: expectation(p[0], jnp.exp(2 * p[1])))(PARAMS)


def function_number(index):
    """The function of a problem, whose number may be traced."""
    functions = [problem.function for problem in PROBLEMS.values()]
    return lambda x: lax.switch(index, functions, x)


def number(name):
    return list(PROBLEMS).index(name)


def traced(jacobians, num_samples=10_000):
    """One program for all problems, of the name of one of them.

    It takes a second to compile, and to interpret it is to run one function of many.
    """

    @interpreted
    def of_number(index, key):
        function = function_number(index)
        return jacobians(function, PARAMS, MultiNormalDiag, key, num_samples)

    return lambda name, seed=0: of_number(jnp.asarray(number(name)), jr.key(seed))


TRACED = {name: traced(estimator) for name, estimator in ESTIMATORS.items()}


def assert_mean(jacobians, expected, tolerance=1e-5):
    """That the estimates are right on average, within four standard errors."""
    for found, exact in zip(
        jax.tree.leaves(jacobians), jax.tree.leaves(expected), strict=True
    ):
        assert found.shape[1:] == exact.shape
        error = jnp.abs(jnp.mean(found, axis=0) - exact)
        deviation = jnp.std(found, axis=0) / len(found) ** 0.5
        assert (error <= 4 * deviation + tolerance).all(), (error, deviation)


def variance(jacobians):
    """The variance of one estimate, summed over all parameters."""
    return sum(jnp.sum(jnp.var(j, axis=0)) for j in jax.tree.leaves(jacobians))
