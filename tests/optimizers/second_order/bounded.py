"""Minimisation problems with bounds on each number, and a reference in NumPy.

HS: Hock and Schittkowski, "Test Examples for Nonlinear Programming Codes", 1981.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np


inf = np.inf


class Bounded(NamedTuple):
    """A function, the start, and the bounds."""

    fn: Callable
    start: list[float]
    lower: list[float]
    upper: list[float]


def rosenbrock(x):
    return 100 * (x[1] - x[0] ** 2) ** 2 + (1 - x[0]) ** 2


def hs5(x):
    return jnp.sin(x[0] + x[1]) + (x[0] - x[1]) ** 2 - 1.5 * x[0] + 2.5 * x[1] + 1


def hs110(x):
    # NaN outside the bounds.
    return jnp.sum(jnp.log(x - 2) ** 2 + jnp.log(10 - x) ** 2) - jnp.prod(x) ** 0.2


def driver(x):
    """The example in the distribution of L-BFGS-B."""
    return (x[0] - 1) ** 2 + 4 * jnp.sum((x[1:] - x[:-1] ** 2) ** 2)


def beale(x):
    y = 1 - x[1] ** jnp.arange(1.0, 4.0)
    return jnp.sum((jnp.array([1.5, 2.25, 2.625]) - x[0] * y) ** 2)


_A, _B = (np.random.default_rng(0).normal(size=n) for n in ((40, 20), 40))


def least_squares(x):
    return 0.5 * jnp.sum((jnp.asarray(_A) @ x - jnp.asarray(_B)) ** 2)


PROBLEMS = {
    "HS 1": Bounded(rosenbrock, [-2, 1], [-inf, -1.5], [inf, inf]),
    "HS 5": Bounded(hs5, [0, 0], [-1.5, -3], [4, 3]),
    "HS 110": Bounded(hs110, [9] * 10, [2.001] * 10, [9.999] * 10),
    "non-negative": Bounded(least_squares, [1] * 20, [0] * 20, [inf] * 20),
    "Beale": Bounded(beale, [1, 1], [-4.5, -4.5], [4.5, 0.4]),
}


def by_hand(value_and_grad, x, lower, upper, steps, memory=10):
    """The parameters after each step, as in the docstring of `ProjectedLBFGS`."""
    project = lambda x: np.clip(x, lower, upper)
    value, g = value_and_grad(x)
    pairs, path = [], []
    for _ in range(steps):
        bound = np.where(g > 0, lower, np.where(g < 0, upper, inf))
        near = min(1e-6, np.max(np.abs(project(x - g) - x)))
        free = np.abs(x - bound) > near
        h = _inverse([(s[free], y[free]) for s, y in pairs[-memory:]], g[free])
        u = np.where(free, 0, bound - x)
        u[free] = -h @ g[free]
        rate = 1.0
        while True:
            new = project(x + rate * u)
            new_value, new_g = value_and_grad(new)
            slope = g @ (new - x)
            if new_value <= value + 1e-4 * slope:
                break
            parabola = -slope / (2 * (new_value - value - slope))
            rate *= np.clip(parabola, 0.1, 0.5)
        pairs.append((new - x, new_g - g))
        x, value, g = new, new_value, new_g
        path.append(x)
    return path


def _inverse(pairs, g):
    """The matrix that BFGS makes from these pairs."""
    pairs = [(s, y) for s, y in pairs if s @ y > 1e-15 * np.sqrt((s @ s) * (y @ y))]
    eye = np.eye(len(g))
    if not pairs:
        return eye * min(1, 1 / np.linalg.norm(g))
    s, y = pairs[-1]
    h = eye * (s @ y) / (y @ y)
    for s, y in pairs:
        v = eye - np.outer(y, s) / (s @ y)
        h = v.T @ h @ v + np.outer(s, s) / (s @ y)
    return h
