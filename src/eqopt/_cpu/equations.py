"""Equations in a form that suits XLA on a CPU, equal to the originals up to rounding.

A leafwise transformation names one of these as `on_cpu` in its `eqopt.Leafwise`.
Measured on two cores, float32, 50M parameters, donated: XLA copies a donated array that
two results read, and the copy takes as long as all the rest. None of these equations
needs one.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float, Inexact

from ..numerics import abs_sq, safe_sqrt


def adadelta(
    g: Inexact[Array, "*leaf"],
    e_g: Float[Array, "*leaf"],
    e_x: Float[Array, "*leaf"],
    *,
    rho: Float[Array, ""],
    eps: Float[Array, ""],
) -> tuple[Inexact[Array, "*leaf"], Float[Array, "*leaf"], Float[Array, "*leaf"]]:
    # The old mean of the updates in terms of the new one. Nor is the quotient used twice,
    # in which case XLA would store it.
    g_sq = (1 - rho) * abs_sq(g)
    e_g = rho * e_g + g_sq
    e_x = rho * e_x + g_sq * (e_x + eps) / (e_g + eps)
    divisor = rho * (e_g + eps) + g_sq
    divisor = jnp.where(divisor == 0, 1, divisor)  # if rho is zero
    return g * safe_sqrt(e_x + rho * eps) / jnp.sqrt(divisor), e_g, e_x


def cocob(
    g: Inexact[Array, "*leaf"],
    p: Inexact[Array, "*leaf"],
    init_particles: Inexact[Array, "*leaf"],
    cumulative_gradients: Inexact[Array, "*leaf"],
    scale: Float[Array, "*leaf"],
    subgradients: Float[Array, "*leaf"],
    reward: Float[Array, "*leaf"],
    *,
    alpha: Float[Array, ""],
    eps: Float[Array, ""],
) -> tuple[
    Inexact[Array, "*leaf"],
    Inexact[Array, "*leaf"],
    Float[Array, "*leaf"],
    Float[Array, "*leaf"],
    Float[Array, "*leaf"],
]:
    # Two arrays meet last: what ends in an array and a number, as max(R, 0), is computed
    # again where it is used, from copies of the slots.
    theta = cumulative_gradients - g
    scale = jnp.maximum(jnp.maximum(scale, eps), jnp.abs(g))
    subgradients = subgradients + jnp.abs(g)
    reward = reward - jnp.minimum(reward, (g.conj() * (p - init_particles)).real)
    safe_scale = jnp.where(scale > 0, scale, 1)
    fraction = theta / jnp.maximum(subgradients + safe_scale, alpha * safe_scale)
    bet = fraction * (1 + reward / safe_scale)
    return init_particles + bet - p, theta, scale, subgradients, reward


def lion(
    g: Inexact[Array, "*leaf"],
    mu: Inexact[Array, "*leaf"],
    *,
    b1: Float[Array, ""],
    b2: Float[Array, ""],
    smooth_beta: Float[Array, ""],
    sign: Callable[[Array, Array], Array],
) -> tuple[Inexact[Array, "*leaf"], Inexact[Array, "*leaf"]]:
    # The new momentum, solved for the old one. b1 / b2 amplifies the rounding.
    mu = b2 * mu + (1 - b2) * g
    c = (b1 / b2) * mu + ((1 - b1) - b1 * (1 - b2) / b2) * g
    return sign(c, smooth_beta), mu


def rprop(
    g: Inexact[Array, "*leaf"],
    step_sizes: Float[Array, "*leaf"],
    prev_updates: Inexact[Array, "*leaf"],
    *,
    eta_minus: Float[Array, ""],
    eta_plus: Float[Array, ""],
    min_step_size: Float[Array, ""],
    max_step_size: Float[Array, ""],
    ratio: Float[Array, ""],
) -> tuple[Inexact[Array, "*leaf"], Float[Array, "*leaf"], Inexact[Array, "*leaf"]]:
    # Arrays meet last. What ends in a `clip` would be computed again for the next line.
    agreement = (jnp.sign(g) * jnp.sign(prev_updates).conj()).real
    turned = agreement < 0
    step_sizes = jnp.where(
        agreement > 0,
        jnp.minimum(eta_plus * step_sizes, max_step_size),
        jnp.where(
            turned, jnp.maximum(eta_minus * step_sizes, min_step_size), step_sizes
        ),
    )
    prev_updates = jnp.where(turned, 0, step_sizes * jnp.sign(g))
    return ratio * prev_updates, step_sizes, prev_updates


def cbrt(x: Float[Array, "*leaf"]) -> Float[Array, "*leaf"]:
    # Of an `x` above 0. XLA calls libm for each `cbrt`, which takes longer than all the
    # rest of MADGRAD. This is vectorised, and a Newton step makes it as exact.
    root = jnp.exp(jnp.log(x) / 3)
    return root - (root - x / (root * root)) / 3
