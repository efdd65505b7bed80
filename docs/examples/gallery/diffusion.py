"""Trains a diffusion model, and draws samples with a moving average of its weights.

`eqopt.ParamEMA` wraps an optimizer and keeps the average, which does not change the
training. `eval_params` returns it. Samples drawn with it are closer to the data.

    python docs/examples/gallery/diffusion.py --output diffusion.svg
"""

import argparse
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt

import eqopt


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=1500)
parser.add_argument("--output", help="where to save a picture")
options = parser.parse_args()

opt = eqopt.ParamEMA(eqopt.AdamW(1e-2), decay=0.995)


def draw_data(key, size):
    """A spiral."""
    key1, key2 = jax.random.split(key)
    angle = 3 * jnp.pi * jnp.sqrt(jax.random.uniform(key1, (size,)))
    points = angle[:, None] * jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1) / 6
    return points + 0.02 * jax.random.normal(key2, (size, 2))


# Standard deviations of the noise, from pure noise to nearly none.
SIGMAS = jnp.geomspace(3.0, 0.01, 60)


def denoise(model, noisy, sigma):
    """An estimate of the clean point, given a noisy one."""
    scale = 1 / jnp.sqrt(1 + sigma**2)
    inputs = jnp.stack([*(noisy * scale), jnp.log(sigma)])
    return scale**2 * noisy + sigma * scale * model(inputs)


def loss_fn(model, key):
    key1, key2, key3 = jax.random.split(key, 3)
    clean = draw_data(key1, 256)
    sigma = jax.random.choice(key2, SIGMAS, (256,))
    noisy = clean + sigma[:, None] * jax.random.normal(key3, (256, 2))
    errors = jax.vmap(denoise, in_axes=(None, 0, 0))(model, noisy, sigma) - clean
    return jnp.mean(jnp.sum(errors**2, axis=1) * (1 + sigma**-2))


@eqx.filter_jit(donate="all-except-first")
def train_step(key, model, state):
    grads = eqx.filter_grad(loss_fn)(model, key)
    return opt.step(grads, state, model)


@eqx.filter_jit
def draw_samples(model, key, size):
    """Starts from noise, and removes it in 59 steps of Euler's method."""

    def less_noise(points, sigmas):
        now, then = sigmas
        clean = jax.vmap(denoise, in_axes=(None, 0, None))(model, points, now)
        return clean + then / now * (points - clean), None

    points = SIGMAS[0] * jax.random.normal(key, (size, 2))
    return jax.lax.scan(less_noise, points, (SIGMAS[:-1], SIGMAS[1:]))[0]


def distance(points):
    """The mean distance from each point to the nearest of 2000 data points."""
    data = draw_data(jax.random.key(3), 2000)
    return jnp.mean(jnp.min(jnp.linalg.norm(points[:, None] - data, axis=2), axis=1))


model = eqx.nn.MLP(3, 2, 64, 3, jax.nn.silu, key=jax.random.key(0))
state = opt.init(model)
for key in jax.random.split(jax.random.key(1), options.steps):
    model, state = train_step(key, model, state)

averaged = opt.eval_params(state, model)
last = draw_samples(model, jax.random.key(2), 400)
average = draw_samples(averaged, jax.random.key(2), 400)
print(f"distance of samples to the data: {distance(last):.3f} with the last weights,")
print(f"{distance(average):.3f} with their average")

plt.style.use(Path(__file__).with_name("picture.mplstyle"))
figure, panels = plt.subplots(1, 3)
shown = {"data": draw_data(jax.random.key(4), 400)}
shown |= {"last weights": last, "average of weights": average}
for axes, (title, points) in zip(panels, shown.items(), strict=True):
    axes.scatter(*points.T, s=2, color="C0" if title == "data" else "C1")
    axes.set(title=title, xticks=[], yticks=[], aspect="equal")
    axes.set(xlim=(-1.8, 1.8), ylim=(-1.8, 1.8))
if options.output:
    figure.savefig(options.output, metadata={"Date": None})
