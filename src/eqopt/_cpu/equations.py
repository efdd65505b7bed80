"""Equations that XLA compiles well for a CPU, equal to the originals up to rounding.

A leafwise transformation names one of these as `on_cpu` in its `eqopt.Leafwise`. On a
CPU, XLA copies a donated array that two results read. For 50M float32 parameters,
donated, on two cores, the copy took as long as the rest of the step. These equations
need no copy.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array

from .._trees.precision import or_tiny
from .._types import Leaf, RealLeaf, Scalar
from ..numerics import abs_sq, safe_sqrt


def adadelta(
    g: Leaf, e_g: RealLeaf, e_x: RealLeaf, *, rho: Scalar, eps: Scalar
) -> tuple[Leaf, RealLeaf, RealLeaf]:
    # This expresses the old mean of the updates by the new one. It also uses the
    # quotient only once: otherwise, XLA would store it.
    g_sq = (1 - rho) * abs_sq(g)
    e_g = rho * e_g + g_sq
    # Infinity over infinity would be NaN.
    e_x = rho * e_x + jnp.where(jnp.isinf(e_g), 0, g_sq * (e_x + eps) / (e_g + eps))
    divisor = rho * (e_g + eps) + g_sq
    divisor = jnp.where(divisor == 0, 1, divisor)  # if rho is zero
    return g * safe_sqrt(e_x + rho * eps) / jnp.sqrt(divisor), e_g, e_x


def lion(
    g: Leaf,
    mu: Leaf,
    *,
    b1: Scalar,
    b2: Scalar,
    smooth_beta: Scalar,
    sign: Callable[[Array, Array], Array],
) -> tuple[Leaf, Leaf]:
    # This solves the new momentum for the old one. b1 / b2 amplifies rounding errors.
    mu = b2 * mu + (1 - b2) * g
    c = (b1 / b2) * mu + ((1 - b1) - b1 * (1 - b2) / b2) * g
    return sign(c, smooth_beta), mu


def cbrt(x: RealLeaf) -> RealLeaf:
    # For x > 0. XLA calls libm for each `cbrt`, which takes longer than the rest of
    # MADGRAD: a step takes 64 ms instead of 29. A faster formula that uses an
    # intermediate value twice takes a copy of the parameters, from JAX 0.12 on.
    return x ** (1 / 3)


def schedule_free_plus(
    g: Leaf,
    mu: Leaf,
    nu: RealLeaf,
    z: Leaf,
    p: Leaf,
    decays: object,
    *,
    b1: Scalar,
    b2: Scalar,
    eps: Scalar,
    mu_correction: Scalar,
    nu_correction: Scalar,
    eta: Scalar,
    c: Scalar,
    beta: Scalar,
    next_beta: Scalar,
    decay: Scalar,
) -> tuple[Leaf, Leaf, RealLeaf, Leaf]:
    # This uses the new z: the old z, which is overwritten, is the new z plus the step.
    mu = (1 - b1) * g + b1 * mu
    nu = (1 - b2) * abs_sq(g) + b2 * nu
    d = mu / mu_correction / (safe_sqrt(nu / nu_correction) + or_tiny(eps))
    pull = 0 if decays is None else decay * p
    z = z - pull - eta * d
    ahead = (p - z) / beta + (1 - 1 / beta) * (pull + eta * d)
    return z + next_beta * (1 - c) * ahead - p, mu, nu, z
