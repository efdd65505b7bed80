"""The problems: functions to minimize, starting points and the lowest known values."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from sklearn.datasets import load_breast_cancer, load_digits

from . import residuals as r


class Problem(NamedTuple):
    """A function to minimize.

    **Attributes:**

    - `title`: the title in the table.
    - `fn`: a function of the parameters, which computes in their dtype.
    - `start`: the initial parameters: NumPy arrays in float64, in any tree.
    - `minima`: the values at the local minima from the literature, the lowest first;
        empty if there are none.
    """

    title: str
    fn: Callable[[Any], Array]
    start: Any
    minima: tuple[float, ...] = ()


def _squares(
    title: str, residuals: Callable[[Array], Array], start, *minima
) -> Problem:
    fn = lambda x: jnp.sum(residuals(x) ** 2)
    return Problem(title, fn, np.asarray(start, np.float64), minima)


@functools.cache
def more_garbow_hillstrom() -> tuple[Problem, ...]:
    """Numbers 1 to 31 and 35 of the collection, except 11 and 19."""
    _1_to = lambda n: np.arange(1.0, n + 1)
    grid = _1_to(10) / 11
    bowl = grid * (grid - 1)
    return (
        _squares("Rosenbrock", r.rosenbrock, [-1.2, 1], 0),
        _squares("Freudenstein-Roth", r.freudenstein_roth, [0.5, -2], 0, 48.9843),
        _squares("Powell badly scaled", r.powell_badly_scaled, [0, 1], 0),
        _squares("Brown badly scaled", r.brown_badly_scaled, [1, 1], 0),
        _squares("Beale", r.beale, [1, 1], 0),
        _squares("Jennrich-Sampson", r.jennrich_sampson, [0.3, 0.4], 124.362),
        _squares("Helical valley", r.helical_valley, [-1, 0, 0], 0),
        _squares("Bard", r.bard, [1, 1, 1], 8.21488e-3, 17.4287),
        _squares("Gaussian", r.gaussian, [0.4, 1, 0], 1.12793e-8),
        _squares("Meyer", r.meyer, [0.02, 4000, 250], 87.9459),
        _squares("Box", r.box, [0, 10, 20], 0),
        _squares("Powell singular", r.powell_singular, [3, -1, 0, 1], 0),
        _squares("Wood", r.wood, [-3, -1, -3, -1], 0),
        _squares(
            "Kowalik-Osborne",
            r.kowalik_osborne,
            [0.25, 0.39, 0.415, 0.39],
            *(3.07506e-4, 1.02734e-3),
        ),
        _squares("Brown-Dennis", r.brown_dennis, [25, 5, -5, -1], 85822.2),
        _squares("Osborne 1", r.osborne, [0.5, 1.5, -1, 0.01, 0.02], 5.46489e-5),
        _squares("Biggs EXP6", r.biggs, [1, 2, 1, 1, 1, 1], 0, 5.65565e-3),
        _squares("Watson, n = 6", r.watson, np.zeros(6), 2.28767e-3),
        _squares("Watson, n = 9", r.watson, np.zeros(9), 1.39976e-6),
        _squares("Extended Rosenbrock, n = 100", r.rosenbrock, [-1.2, 1] * 50, 0),
        _squares(
            "Extended Powell singular, n = 100",
            r.powell_singular,
            [3, -1, 0, 1] * 25,
            0,
        ),
        _squares("Penalty I, n = 10", r.penalty_1, _1_to(10), 7.08765e-5),
        _squares("Penalty II, n = 4", r.penalty_2, np.full(4, 0.5), 9.37629e-6),
        _squares("Penalty II, n = 10", r.penalty_2, np.full(10, 0.5), 2.93660e-4),
        _squares(
            "Variably dimensioned, n = 10",
            r.variably_dimensioned,
            1 - _1_to(10) / 10,
            0,
        ),
        _squares(
            "Trigonometric, n = 10",
            r.trigonometric,
            np.full(10, 0.1),
            *(0, 2.79506e-5),
        ),
        _squares(
            "Brown almost linear, n = 10",
            r.brown_almost_linear,
            np.full(10, 0.5),
            *(0, 1),
        ),
        _squares("Boundary value, n = 10", r.boundary_value, bowl, 0),
        _squares("Integral equation, n = 10", r.integral_equation, bowl, 0),
        _squares(
            "Broyden tridiagonal, n = 100", r.broyden_tridiagonal, -np.ones(100), 0
        ),
        _squares("Broyden banded, n = 100", r.broyden_banded, -np.ones(100), 0),
        _squares("Chebyquad, n = 8", r.chebyquad, _1_to(8) / 9, 3.51687e-3),
    )


def himmelblau(x: Array) -> Array:
    return (x[0] ** 2 + x[1] - 11) ** 2 + (x[0] + x[1] ** 2 - 7) ** 2


def matyas(x: Array) -> Array:
    return 0.26 * jnp.sum(x**2) - 0.48 * x[0] * x[1]


def booth(x: Array) -> Array:
    return (x[0] + 2 * x[1] - 7) ** 2 + (2 * x[0] + x[1] - 5) ** 2


def eggholder(x: Array) -> Array:
    a, b = x[0], x[1] + 47
    wave = lambda x: jnp.sin(jnp.sqrt(jnp.abs(x)))
    return -b * wave(a / 2 + b) - a * wave(a - b)


def zakharov(x: Array) -> Array:
    tilted = jnp.sum(jnp.arange(1, len(x) + 1, dtype=x.dtype) * x) / 2
    return jnp.sum(x**2) + tilted**2 + tilted**4


def chained_rosenbrock(x: Array) -> Array:
    return jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


@functools.cache
def others() -> tuple[Problem, ...]:
    """The functions with which Optax tests its L-BFGS, and similar ones."""
    chain = np.asarray([-1.2, 1] * 8)
    return (
        Problem("Chained Rosenbrock, n = 16", chained_rosenbrock, chain, (0.0,)),
        Problem("Himmelblau", himmelblau, np.ones(2), (0.0,)),
        Problem("Matyas", matyas, np.full(2, 6.0), (0.0,)),
        Problem("Booth", booth, np.zeros(2), (0.0,)),
        Problem("Eggholder", eggholder, np.full(2, 100.0)),
        Problem("Zakharov, n = 6", zakharov, np.ones(6), (0.0,)),
    )


def logistic_regression() -> Problem:
    features, label = load_breast_cancer(return_X_y=True)
    features = (features - features.mean(0)) / features.std(0)
    sign = 2.0 * label - 1

    def fn(params):
        dtype = params["bias"].dtype
        logits = jnp.asarray(features, dtype) @ params["weight"] + params["bias"]
        losses = jax.nn.softplus(-jnp.asarray(sign, dtype) * logits)
        return jnp.mean(losses) + 1e-3 * jnp.sum(params["weight"] ** 2)

    start = {"weight": np.zeros(30), "bias": np.zeros(())}
    return Problem("Breast cancer, logistic regression", fn, start)


def digits() -> Problem:
    images, label = load_digits(return_X_y=True)
    label = np.eye(10)[label]
    model = eqx.nn.MLP(64, 10, 32, 1, jax.nn.tanh, key=jax.random.key(0))

    def fn(model):
        arrays = jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array))
        dtype = arrays[0].dtype
        logits = jax.vmap(model)(jnp.asarray(images / 16, dtype))
        fit = jnp.mean(jnp.sum(-jnp.asarray(label, dtype) * _log_p(logits), axis=1))
        return fit + 1e-3 * sum(jnp.sum(x**2) for x in arrays)

    wide = lambda x: np.asarray(x, np.float64) if eqx.is_inexact_array(x) else x
    return Problem("Digits, network of 2,410 parameters", fn, jax.tree.map(wide, model))


def _log_p(logits: Array) -> Array:
    return jax.nn.log_softmax(logits, axis=1)


@functools.cache
def problems() -> tuple[Problem, ...]:
    return (
        *more_garbow_hillstrom(),
        *others(),
        logistic_regression(),
        digits(),
    )
