"""Finds the best penalty of a regression, by the gradient through a converged fit.

`eqopt.interop.optimistix.Minimiser` turns an optimizer into a solver. Optimistix runs it
to convergence, and differentiates the solution by the implicit function theorem.

    python docs/examples/gallery/optimistix_solve.py --output optimistix_solve.svg
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import optimistix as optx
from sklearn.datasets import load_breast_cancer

import eqopt
from eqopt.interop.optimistix import Minimiser


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--output", help="where to save a picture")
options = parser.parse_args()

solver = Minimiser(eqopt.Adam(0.1), rtol=1e-4, atol=1e-5)

# 30 measurements of each tumour, and whether it is benign. 60 of them to fit.
x, y = map(jnp.asarray, load_breast_cancer(return_X_y=True))
x = ((x - x.mean(axis=0)) / x.std(axis=0)).astype(jnp.float32)
x_fit, y_fit, x_held_out, y_held_out = x[:60], y[:60], x[60:], y[60:]


def loss_fn(weights, x, y):
    scores = x @ weights["slopes"] + weights["offset"]
    return jnp.mean(eqopt.losses.sigmoid_binary_cross_entropy(scores, y))


def penalized(weights, log_penalty):
    size = jnp.sum(weights["slopes"] ** 2)
    return loss_fn(weights, x_fit, y_fit) + jnp.exp(log_penalty) * size


def fit(log_penalty):
    start = {"slopes": jnp.zeros(30), "offset": jnp.zeros(())}
    found = optx.minimise(penalized, solver, start, log_penalty, max_steps=10_000)
    return found.value


@jax.jit
def held_out_loss(log_penalty):
    return loss_fn(fit(log_penalty), x_held_out, y_held_out)


log_penalty = jnp.log(1.0)
outer_opt = eqopt.Adam(0.4, b1=0.5)
outer_state = outer_opt.init(log_penalty)
value_and_grad = jax.jit(jax.value_and_grad(held_out_loss))
path = []
for _ in range(options.steps):
    loss, grad = value_and_grad(log_penalty)
    path.append((float(jnp.exp(log_penalty)), float(loss)))
    log_penalty, outer_state = outer_opt.step(grad, outer_state, log_penalty)

(_, first), (penalty, last) = path[0], path[-1]
print(f"held-out loss: {first:.3f}, then {last:.3f} at a penalty of {penalty:.4f}")

plt.style.use(Path(__file__).with_name("picture.mplstyle"))
figure, axes = plt.subplots()
penalties = jnp.geomspace(1e-4, 2.0, 40)
axes.semilogx(penalties, [held_out_loss(jnp.log(p)) for p in penalties])
axes.plot(*zip(*path, strict=True), "o-", markersize=4, alpha=0.7)
axes.set(title="loss on 509 tumours that were held out", xlabel="penalty")
if options.output:
    figure.savefig(options.output, metadata={"Date": None})
