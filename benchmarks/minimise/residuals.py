"""Sums of squares from the collection of Moré, Garbow and Hillstrom.

"Testing Unconstrained Optimization Software", ACM Transactions on Mathematical Software
7 (1981), pp. 17-41. Each function returns the residuals, whose squares are then summed.
The comments have the numbers from the article.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array


def rosenbrock(x: Array) -> Array:  # 1; also 21, for more dimensions
    odd, even = x[::2], x[1::2]
    return jnp.concatenate([10 * (even - odd**2), 1 - odd])


def freudenstein_roth(x: Array) -> Array:  # 2
    a, b = x
    return jnp.stack(
        [-13 + a + ((5 - b) * b - 2) * b, -29 + a + ((b + 1) * b - 14) * b]
    )


def powell_badly_scaled(x: Array) -> Array:  # 3
    a, b = x
    return jnp.stack([1e4 * a * b - 1, jnp.exp(-a) + jnp.exp(-b) - 1.0001])


def brown_badly_scaled(x: Array) -> Array:  # 4
    a, b = x
    return jnp.stack([a - 1e6, b - 2e-6, a * b - 2])


def beale(x: Array) -> Array:  # 5
    return _like(x, [1.5, 2.25, 2.625]) - x[0] * (1 - x[1] ** _to(x, 3))


def jennrich_sampson(x: Array) -> Array:  # 6
    i = _to(x, 10)
    return 2 + 2 * i - jnp.exp(i * x[0]) - jnp.exp(i * x[1])


def helical_valley(x: Array) -> Array:  # 7
    a, b, c = x
    # The angle in turns, from -1/4 to 3/4. It jumps at `a == 0` if `b` is negative.
    turns = jnp.arctan(b / a) / (2 * jnp.pi) + jnp.where(a > 0, 0, 0.5).astype(x.dtype)
    return jnp.stack([10 * (c - 10 * turns), 10 * (jnp.hypot(a, b) - 1), c])


def bard(x: Array) -> Array:  # 8
    u = _to(x, 15)
    v = 16 - u
    return _like(x, _BARD) - x[0] - u / (v * x[1] + jnp.minimum(u, v) * x[2])


def gaussian(x: Array) -> Array:  # 9
    t = (8 - _to(x, 15)) / 2
    return x[0] * jnp.exp(-x[1] * (t - x[2]) ** 2 / 2) - _like(x, _GAUSSIAN)


def meyer(x: Array) -> Array:  # 10
    return x[0] * jnp.exp(x[1] / (45 + 5 * _to(x, 16) + x[2])) - _like(x, _MEYER)


def box(x: Array) -> Array:  # 12
    t = _to(x, 10) / 10
    curve = jnp.exp(-t * x[0]) - jnp.exp(-t * x[1])
    return curve - x[2] * (jnp.exp(-t) - jnp.exp(-10 * t))


def powell_singular(x: Array) -> Array:  # 13; also 22, for more dimensions
    a, b, c, d = x.reshape(-1, 4).T
    parts = a + 10 * b, 5**0.5 * (c - d), (b - 2 * c) ** 2, 10**0.5 * (a - d) ** 2
    return jnp.concatenate(parts)


def wood(x: Array) -> Array:  # 14
    a, b, c, d = x
    return jnp.stack(
        [
            *(10 * (b - a**2), 1 - a, 90**0.5 * (d - c**2), 1 - c),
            *(10**0.5 * (b + d - 2), 0.1**0.5 * (b - d)),
        ]
    )


def kowalik_osborne(x: Array) -> Array:  # 15
    u = _like(x, _KOWALIK_U)
    ratio = (u**2 + u * x[1]) / (u**2 + u * x[2] + x[3])
    return _like(x, _KOWALIK_Y) - x[0] * ratio


def brown_dennis(x: Array) -> Array:  # 16
    t = _to(x, 20) / 5
    line = x[0] + t * x[1] - jnp.exp(t)
    return line**2 + (x[2] + x[3] * jnp.sin(t) - jnp.cos(t)) ** 2


def osborne(x: Array) -> Array:  # 17
    t = 10 * (_to(x, 33) - 1)
    curve = x[0] + x[1] * jnp.exp(-t * x[3]) + x[2] * jnp.exp(-t * x[4])
    return _like(x, _OSBORNE) - curve


def biggs(x: Array) -> Array:  # 18
    t = _to(x, 13) / 10
    data = jnp.exp(-t) - 5 * jnp.exp(-10 * t) + 3 * jnp.exp(-4 * t)
    curve = x[2] * jnp.exp(-t * x[0]) - x[3] * jnp.exp(-t * x[1])
    return curve + x[5] * jnp.exp(-t * x[4]) - data


def watson(x: Array) -> Array:  # 20
    t, k = _to(x, 29)[:, None] / 29, _to(x, len(x)) - 1
    powers = t**k
    slope = powers[:, :-1] @ (k[1:] * x[1:])
    return jnp.append(slope - (powers @ x) ** 2 - 1, _pair(x[0], x[1] - x[0] ** 2 - 1))


def penalty_1(x: Array) -> Array:  # 23
    return jnp.append(1e-5**0.5 * (x - 1), jnp.sum(x**2) - 0.25)


def penalty_2(x: Array) -> Array:  # 24
    n, small = len(x), 1e-5**0.5
    curve = jnp.exp(x / 10)
    data = jnp.exp(_to(x, n) / 10)
    near = small * (curve[1:] + curve[:-1] - data[1:] - data[:-1])
    far = small * (curve[1:] - jnp.exp(_like(x, -0.1)))
    weighted = jnp.sum((n + 1 - _to(x, n)) * x**2) - 1
    return jnp.concatenate([_pair(x[0] - 0.2, weighted), near, far])


def variably_dimensioned(x: Array) -> Array:  # 25
    weighted = jnp.sum(_to(x, len(x)) * (x - 1))
    return jnp.append(x - 1, _pair(weighted, weighted**2))


def trigonometric(x: Array) -> Array:  # 26
    n, cos = len(x), jnp.cos(x)
    return n - jnp.sum(cos) + _to(x, n) * (1 - cos) - jnp.sin(x)


def brown_almost_linear(x: Array) -> Array:  # 27
    linear = x[:-1] + jnp.sum(x) - (len(x) + 1)
    return jnp.append(linear, jnp.prod(x) - 1)


def boundary_value(x: Array) -> Array:  # 28
    h = 1 / (len(x) + 1)
    padded = jnp.pad(x, 1)
    bent = h**2 * (x + h * _to(x, len(x)) + 1) ** 3 / 2
    return 2 * x - padded[:-2] - padded[2:] + bent


def integral_equation(x: Array) -> Array:  # 29
    h = 1 / (len(x) + 1)
    t = h * _to(x, len(x))
    kernel = jnp.minimum(t[:, None], t) * (1 - jnp.maximum(t[:, None], t))
    return x + h * kernel @ (x + t + 1) ** 3 / 2


def broyden_tridiagonal(x: Array) -> Array:  # 30
    padded = jnp.pad(x, 1)
    return (3 - 2 * x) * x - padded[:-2] - 2 * padded[2:] + 1


def broyden_banded(x: Array) -> Array:  # 31
    n = len(x)
    band = np.tri(n, n, 1) - np.tri(n, n, -6) - np.eye(n)
    return x * (2 + 5 * x**2) + 1 - _like(x, band) @ (x * (1 + x))


def chebyquad(x: Array) -> Array:  # 35
    # Chebyshev polynomials on [0, 1], by their recurrence, and their integrals.
    rows, y = [jnp.ones_like(x), 2 * x - 1], 2 * x - 1
    for _ in range(len(x) - 1):
        rows.append(2 * y * rows[-1] - rows[-2])
    i = np.arange(1, len(x) + 1)
    integrals = np.where(i % 2 == 0, -1 / np.maximum(i**2 - 1, 1), 0)
    return jnp.mean(jnp.stack(rows[1:]), axis=1) - _like(x, integrals)


def _like(x: Array, values: Any) -> Array:
    return jnp.asarray(values, x.dtype)


def _to(x: Array, n: int) -> Array:
    """1, 2, ..., n."""
    return jnp.arange(1, n + 1, dtype=x.dtype)


def _pair(a: Array, b: Array) -> Array:
    return jnp.stack([a, b])


_BARD = [
    *(0.14, 0.18, 0.22, 0.25, 0.29, 0.32, 0.35, 0.39),
    *(0.37, 0.58, 0.73, 0.96, 1.34, 2.10, 4.39),
]
_HALF = [0.0009, 0.0044, 0.0175, 0.0540, 0.1295, 0.2420, 0.3521]
_GAUSSIAN = [*_HALF, 0.3989, *_HALF[::-1]]
_MEYER = [
    *(34780, 28610, 23650, 19630, 16370, 13720, 11540, 9744),
    *(8261, 7030, 6005, 5147, 4427, 3820, 3307, 2872),
]
_KOWALIK_Y = [
    *(0.1957, 0.1947, 0.1735, 0.1600, 0.0844, 0.0627),
    *(0.0456, 0.0342, 0.0323, 0.0235, 0.0246),
]
_KOWALIK_U = [4, 2, 1, 0.5, 0.25, 0.167, 0.125, 0.1, 0.0833, 0.0714, 0.0625]
_OSBORNE = [
    *(0.844, 0.908, 0.932, 0.936, 0.925, 0.908, 0.881, 0.850, 0.818, 0.784, 0.751),
    *(0.718, 0.685, 0.658, 0.628, 0.603, 0.580, 0.558, 0.538, 0.522, 0.506, 0.490),
    *(0.478, 0.467, 0.457, 0.448, 0.438, 0.431, 0.424, 0.420, 0.414, 0.411, 0.406),
]
