"""Solves Burgers' equation with a network: L-BFGS gets to a solution, Adam does not.

u_t + u u_x = nu u_xx for -1 < x < 1, with u = -sin(pi x) at t = 0. The loss is the mean
square of the residual at 1000 fixed points, so it has no noise: L-BFGS needs that.

    python docs/examples/gallery/physics_informed.py --output physics_informed.svg
"""

import argparse
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import eqopt


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=400)
parser.add_argument("--output", help="where to save a picture")
options = parser.parse_args()

NU = 0.03
lbfgs, adam = eqopt.LBFGS(), eqopt.Adam(3e-3)


def u(network, t, x):
    """The solution. It meets the initial and boundary conditions by construction."""
    return -jnp.sin(jnp.pi * x) + t * (1 - x**2) * network(jnp.stack([t, x]))


def residual(network, point):
    at = lambda t, x: u(network, t, x)
    u_x = jax.grad(at, 1)
    u_xx = jax.grad(u_x, 1)(*point)
    return jax.grad(at, 0)(*point) + at(*point) * u_x(*point) - NU * u_xx


points = jax.random.uniform(jax.random.key(0), (1000, 2)) * jnp.array([1, 2])
points = points - jnp.array([0, 1])


def loss_fn(network):
    return jnp.mean(jax.vmap(lambda point: residual(network, point))(points) ** 2)


value_and_grad = eqopt.value_and_grad_from_state(loss_fn)


@eqx.filter_jit
def lbfgs_step(network, state):
    # The line search has evaluated both already: they are in the state.
    value, grads = value_and_grad(network, state=state)
    network, state = lbfgs.step(
        grads, state, network, value=value, grad=grads, value_fn=loss_fn
    )
    return network, state, value


@eqx.filter_jit
def adam_step(network, state):
    value, grads = eqx.filter_value_and_grad(loss_fn)(network)
    network, state = adam.step(grads, state, network)
    return network, state, value


def exact(t, x):
    """By the formula of Cole and Hopf, for t > 0."""
    nodes, weights = np.polynomial.hermite.hermgauss(100)
    y = x[:, None] - np.sqrt(4 * NU * t[:, None]) * nodes
    f = weights * np.exp(-np.cos(np.pi * y) / (2 * np.pi * NU))
    return -np.sum(np.sin(np.pi * y) * f, axis=1) / np.sum(f, axis=1)


grid = np.meshgrid(np.linspace(0.01, 1, 100), np.linspace(-1, 1, 100))
t, x = (values.ravel() for values in grid)

plt.style.use(Path(__file__).with_name("picture.mplstyle"))
figure, (left, right) = plt.subplots(1, 2)
for name, opt, step in [("Adam", adam, adam_step), ("L-BFGS", lbfgs, lbfgs_step)]:
    network = eqx.nn.MLP(2, "scalar", 20, 3, jnp.tanh, key=jax.random.key(1))
    state = opt.init(network)
    losses = []
    for _ in range(options.steps):
        network, state, loss = step(network, state)
        losses.append(float(loss))
    found = jax.vmap(lambda t, x, n=network: u(n, t, x))(jnp.asarray(t), jnp.asarray(x))
    error = np.linalg.norm(found - exact(t, x)) / np.linalg.norm(exact(t, x))
    print(f"{name}: a loss of {losses[-1]:.1e}, {error:.2%} from the exact solution")
    left.semilogy(losses, label=name)

left.set(title="mean square of the residual", xlabel="step")
left.legend()
image = found.reshape(grid[0].shape)
right.imshow(
    image, extent=(0, 1, -1, 1), aspect="auto", origin="lower", cmap="coolwarm"
)
right.set(title="solution by L-BFGS", xlabel="t", ylabel="x")
if options.output:
    figure.savefig(options.output, metadata={"Date": None})
