"""Trains a generative adversarial network: two models, two optimizers, one step.

The generator turns noise into points, and the discriminator tells them from the data.
Each of them has an optimizer and a state of its own.

    python docs/examples/gallery/gan.py --output gan.svg
"""

import argparse
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
from jax.nn import softplus

import eqopt


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=2000)
parser.add_argument("--output", help="where to save a picture")
options = parser.parse_args()

generator_opt = eqopt.Adam(1e-3, b1=0.5)
discriminator_opt = eqopt.Adam(2e-3, b1=0.5)


def draw_data(key, size):
    """Eight clusters on a circle."""
    key1, key2 = jax.random.split(key)
    angle = jax.random.randint(key1, (size,), 0, 8) * jnp.pi / 4
    centres = jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1)
    return centres + 0.05 * jax.random.normal(key2, (size, 2))


def generate(generator, key, size):
    return jax.vmap(generator)(jax.random.normal(key, (size, 4)))


def discriminator_loss(discriminator, real, made):
    """High scores mean real. A penalty keeps the scores flat near the data."""
    scores, slopes = jax.vmap(jax.value_and_grad(discriminator))(real)
    penalty = 0.1 * jnp.mean(jnp.sum(slopes**2, axis=1))
    of_made = jax.vmap(discriminator)(made)
    return jnp.mean(softplus(-scores)) + jnp.mean(softplus(of_made)) + penalty


def generator_loss(generator, discriminator, key):
    made = generate(generator, key, 256)
    return jnp.mean(softplus(-jax.vmap(discriminator)(made)))


@eqx.filter_jit(donate="all-except-first")
def train_step(key, models, states):
    generator, discriminator = models
    generator_state, discriminator_state = states
    key1, key2, key3 = jax.random.split(key, 3)

    real, made = draw_data(key1, 256), generate(generator, key2, 256)
    grads = eqx.filter_grad(discriminator_loss)(discriminator, real, made)
    discriminator, discriminator_state = discriminator_opt.step(
        grads, discriminator_state, discriminator
    )

    grads = eqx.filter_grad(generator_loss)(generator, discriminator, key3)
    generator, generator_state = generator_opt.step(grads, generator_state, generator)
    return (generator, discriminator), (generator_state, discriminator_state)


key1, key2, key3, key4 = jax.random.split(jax.random.key(0), 4)
generator = eqx.nn.MLP(4, 2, 64, 2, key=key1)
discriminator = eqx.nn.MLP(2, "scalar", 64, 2, key=key2)
models = generator, discriminator
states = generator_opt.init(generator), discriminator_opt.init(discriminator)

plt.style.use(Path(__file__).with_name("picture.mplstyle"))
figure, panels = plt.subplots(1, 4, figsize=(7.2, 2.1))
moments = [options.steps * i // 3 for i in range(4)]
for step, key in enumerate(jax.random.split(key3, options.steps + 1)):
    if step in moments:
        points = generate(models[0], key4, 200)
        axes = panels[moments.index(step)]
        axes.scatter(*draw_data(key4, 200).T, s=3, color="0.75")
        axes.scatter(*points.T, s=3, color="C1")
        axes.set(title=f"step {step}", xlim=(-1.5, 1.5), ylim=(-1.5, 1.5))
        axes.set(xticks=[], yticks=[], aspect="equal")
    models, states = train_step(key, models, states)

points = generate(models[0], key4, 1000)
sector = jnp.round(jnp.atan2(points[:, 1], points[:, 0]) / (jnp.pi / 4)) % 8
centres = jnp.stack([jnp.cos(sector * jnp.pi / 4), jnp.sin(sector * jnp.pi / 4)], 1)
near = jnp.linalg.norm(points - centres, axis=1) < 0.2
found = len(jnp.unique(sector[near]))
print(f"{found} of 8 clusters found, {jnp.mean(near):.0%} of the points are in one")
if options.output:
    figure.savefig(options.output, metadata={"Date": None})
