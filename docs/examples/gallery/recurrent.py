"""Trains a recurrent network to forecast a chaotic system, with clipped gradients.

A GRU sees the Lorenz system for 200 steps, then continues from its own forecasts.
Gradients through 64 time steps can be large, so `eqopt.ClipByGlobalNorm` comes before
the optimizer in a chain.

    python docs/examples/gallery/recurrent.py --output recurrent.svg
"""

import argparse
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt

import eqopt


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=1000)
parser.add_argument("--output", help="where to save a picture")
options = parser.parse_args()

schedule = eqopt.schedules.CosineDecay(1e-2, options.steps)
opt = eqopt.Chain(eqopt.ClipByGlobalNorm(1.0), eqopt.AdamW(schedule))


def lorenz(size):
    """Three coordinates at `size` times, 0.05 apart, by Heun's method."""

    def velocity(p):
        x, y, z = p
        return jnp.stack([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z])

    def move(p, _):
        slope = velocity(p)
        return p + 0.0025 * (slope + velocity(p + 0.005 * slope)), p

    path = jax.lax.scan(move, jnp.array([1.0, 1.0, 20.0]), length=10 * size)[1][::10]
    return (path - jnp.array([0, 0, 24])) / 10


class Forecaster(eqx.Module):
    cell: eqx.nn.GRUCell
    head: eqx.nn.Linear

    def __init__(self, key):
        key1, key2 = jax.random.split(key)
        self.cell = eqx.nn.GRUCell(3, 48, key=key1)
        self.head = eqx.nn.Linear(48, 3, key=key2)

    def __call__(self, path, known):
        """Forecasts each next point, from its own forecasts after `known` points."""

        def step(carry, inputs):
            hidden, forecast = carry
            place, point = inputs
            point = jnp.where(place < known, point, forecast)
            hidden = self.cell(point, hidden)
            forecast = point + self.head(hidden)
            return (hidden, forecast), forecast

        start = jnp.zeros(48), path[0]
        return jax.lax.scan(step, start, (jnp.arange(len(path)), path))[1]


path = lorenz(6000)
train, test = path[:5000], path[5000:]


def loss_fn(model, starts):
    paths = train[starts + jnp.arange(65)]
    forecasts = jax.vmap(lambda path: model(path[:-1], known=64))(paths)
    return jnp.mean((forecasts - paths[:, 1:]) ** 2)


@eqx.filter_jit(donate="all-except-first")
def train_step(key, model, state):
    starts = jax.random.randint(key, (32, 1), 0, len(train) - 65)
    loss, grads = eqx.filter_value_and_grad(loss_fn)(model, starts)
    model, state = opt.step(grads, state, model)
    return model, state, loss


model = Forecaster(jax.random.key(0))
state = opt.init(model)
losses = []
for key in jax.random.split(jax.random.key(1), options.steps):
    model, state, loss = train_step(key, model, state)
    losses.append(loss)

KNOWN = 200
forecasts, truth = model(test[:300], KNOWN)[KNOWN:], test[KNOWN + 1 : 301]
errors = jnp.linalg.norm(forecasts - truth, axis=1)
good = jnp.argmax(jnp.append(errors, jnp.inf) > 0.5)
print(f"loss {losses[-1]:.5f}; off by less than 0.5 for {good} steps on its own")

plt.style.use(Path(__file__).with_name("picture.mplstyle"))
figure, axes = plt.subplots()
axes.plot(jnp.arange(-80, 100), test[KNOWN - 79 : 301, 0], label="Lorenz system")
axes.plot(forecasts[:, 0], "--", label="GRU on its own")
axes.set(title="first coordinate", xlabel="step on its own", ylim=(-2.2, 2.6))
axes.legend(loc="upper left", ncols=2)
if options.output:
    figure.savefig(options.output, metadata={"Date": None})
