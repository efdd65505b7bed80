"""Trains a recurrent network to forecast a chaotic system, with clipped gradients.

A GRU sees the Lorenz system for a while, and goes on alone. Gradients through 64 steps of
it are large now and then: `eqopt.ClipByGlobalNorm` goes before the optimizer in a chain.

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

    def __call__(self, point, hidden):
        """The next point, and what the network remembers."""
        hidden = self.cell(point, hidden)
        return point + self.head(hidden), hidden

    def follow(self, path):
        """Forecasts of one step along a path that is known."""

        def step(hidden, point):
            forecast, hidden = self(point, hidden)
            return hidden, forecast

        return jax.lax.scan(step, jnp.zeros(48), path)

    def go_on(self, point, hidden, size):
        """Forecasts of forecasts."""

        def step(carry, _):
            carry = self(*carry)
            return carry, carry[0]

        return jax.lax.scan(step, (point, hidden), length=size)[1]


path = lorenz(6000)
train, test = path[:5000], path[5000:]


def loss_fn(model, starts):
    paths = train[starts + jnp.arange(65)]
    _, forecasts = jax.vmap(model.follow)(paths[:, :-1])
    return jnp.mean((forecasts - paths[:, 1:]) ** 2)


@eqx.filter_jit(donate="all-except-first")
def train_step(key, model, state):
    starts = jax.random.randint(key, (32, 1), 0, len(train) - 65)
    loss, grads = eqx.filter_value_and_grad(loss_fn)(model, starts)
    model, state = opt.step(grads, state, model)
    return model, state, loss


model = Forecaster(jax.random.key(0))
state = opt.init(model)
for key in jax.random.split(jax.random.key(1), options.steps):
    model, state, loss = train_step(key, model, state)

hidden, forecasts = model.follow(test[:200])
forecasts = model.go_on(forecasts[-1], hidden, 100)
errors = jnp.linalg.norm(forecasts - test[201:301], axis=1)
good = jnp.argmax(errors > 0.5) if jnp.any(errors > 0.5) else len(errors)
print(f"error of one step: {jnp.sqrt(loss):.4f}; right for {good} steps on its own")

plt.style.use(Path(__file__).with_name("light_and_dark.mplstyle"))
figure, axes = plt.subplots()
axes.plot(test[120:301, 0], label="Lorenz system")
axes.plot(jnp.arange(81, 181), forecasts[:, 0], "--", label="GRU on its own")
axes.axvline(80, color="C2", linewidth=0.8, linestyle=":")
axes.set(title="first coordinate", xlabel="step")
axes.legend(loc="upper left", ncols=2)
if options.output:
    figure.savefig(options.output, metadata={"Date": None})
