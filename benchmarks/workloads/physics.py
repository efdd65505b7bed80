r"""A physics-informed network for the heat equation, with all points in every step.

On $[0, 1]^2$, $u_t = u_{xx} / 10$ with $u(0, x) = \sin πx + \sin(3πx) / 2$ and
$u(t, 0) = u(t, 1) = 0$. The validation loss is the squared error, compared with the known
solution, at points between the training points.
"""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .workload import Workload


DIFFUSIVITY = 0.1


def solution(t, x):
    decay = lambda k: jnp.exp(-DIFFUSIVITY * (k * jnp.pi) ** 2 * t)
    wave = lambda k: decay(k) * jnp.sin(k * jnp.pi * x)
    return wave(1) + wave(3) / 2


def loss(model, point):
    """The residual inside, and the errors at the start and at one boundary."""
    t, x = point
    u = lambda t, x: model(jnp.stack([t, x]))
    u_t = jax.grad(u)(t, x)
    u_xx = jax.grad(jax.grad(u, 1), 1)(t, x)
    end = jnp.round(x)
    at_start = (u(jnp.zeros_like(t), x) - solution(0.0, x)) ** 2
    return (u_t - DIFFUSIVITY * u_xx) ** 2 + 10 * (at_start + u(t, end) ** 2)


def error(model, point):
    return (model(jnp.stack(point)) - solution(*point)) ** 2


def grid(points, shift):
    axis = (np.arange(points, dtype=np.float32) + np.float32(shift)) / points
    return tuple(x.ravel() for x in np.meshgrid(axis, axis))


@functools.cache
def heat() -> Workload:
    return Workload(
        "Heat equation",
        "A physics-informed network with three hidden layers of 24 solves a partial "
        "differential equation; all 256 points in each step",
        lambda key: eqx.nn.MLP(2, "scalar", 24, 3, jnp.tanh, key=key),
        loss,
        grid(16, 0.5),
        grid(16, 0.0),
        steps=500,
        target=6.5e-06,
        batch=None,
        held_out_loss=error,
    )
