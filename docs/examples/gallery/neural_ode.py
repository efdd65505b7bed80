"""Learns the law of motion of a pendulum from its path: a neural ODE with Diffrax.

The model is a differential equation whose right-hand side is a network. The optimizer
takes it as it takes any model, and gradients flow back through the solver.

    python docs/examples/gallery/neural_ode.py --output neural_ode.svg
"""

import argparse
from pathlib import Path

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt

import eqopt


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--output", help="where to save a picture")
options = parser.parse_args()


class NeuralODE(eqx.Module):
    network: eqx.nn.MLP

    def __init__(self, key):
        self.network = eqx.nn.MLP(2, 2, 32, 2, jnp.tanh, key=key)

    def __call__(self, times, start):
        velocity = lambda t, y, args: self.network(y)
        return solve(velocity, times, start)


def solve(velocity, times, start):
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(velocity),
        diffrax.Tsit5(),
        t0=times[0],
        t1=times[-1],
        dt0=0.1,
        y0=start,
        saveat=diffrax.SaveAt(ts=times),
    )
    return jnp.asarray(solution.ys)


def pendulum(t, y, args):
    angle, speed = y
    return jnp.stack([speed, -jnp.sin(angle) - 0.1 * speed])


# Eight swings are measured, with some noise, and cut into pieces of ten points.
times = 0.15 * jnp.arange(40)
starts = jax.random.uniform(jax.random.key(0), (8, 2), minval=-1.5, maxval=1.5)
swings = jax.vmap(lambda start: solve(pendulum, times, start))(starts)
measured = swings + 0.02 * jax.random.normal(jax.random.key(1), swings.shape)
pieces = measured.reshape(32, 10, 2)


def loss_fn(model, pieces):
    found = jax.vmap(lambda piece: model(times[:10], piece[0]))(pieces)
    return jnp.mean((found - pieces) ** 2)


@eqx.filter_jit(donate="all-except-first")
def train_step(pieces, model, state):
    loss, grads = eqx.filter_value_and_grad(loss_fn)(model, pieces)
    model, state = opt.step(grads, state, model)
    return model, state, loss


schedule = eqopt.schedules.CosineDecay(1e-2, options.steps)
opt = eqopt.Chain(eqopt.ClipByGlobalNorm(1.0), eqopt.AdamW(schedule))
model = NeuralODE(jax.random.key(2))
state = opt.init(model)
losses = []
for _ in range(options.steps):
    model, state, loss = train_step(pieces, model, state)
    losses.append(loss)

# A swing that was not measured, for twice as long.
later, start = 0.1 * jnp.arange(120), jnp.array([1.5, 0.0])
truth, found = solve(pendulum, later, start), model(later, start)
error = jnp.sqrt(jnp.mean((found - truth) ** 2))
print(f"loss {losses[-1]:.5f}; {error:.3f} from a swing that it has not seen")

plt.style.use(Path(__file__).with_name("picture.mplstyle"))
figure, (left, right) = plt.subplots(1, 2, width_ratios=(2, 1))
left.plot(later, truth[:, 0], label="pendulum")
left.plot(later, found[:, 0], "--", label="neural ODE")
left.set(title="angle of a swing that was not measured", xlabel="time")
left.legend(loc="upper right", ncols=2)
right.scatter(*measured.reshape(-1, 2).T, s=3, color="C2")
right.set(title="what was measured", xlabel="angle", ylabel="speed")
if options.output:
    figure.savefig(options.output, metadata={"Date": None})
