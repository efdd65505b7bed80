"""Learns a learning rate schedule by gradient descent on the schedule.

An optimizer is a pytree, and its numbers are leaves. So the loss after training can be
differentiated with respect to the optimizer, and a second optimizer can improve it.

    python docs/examples/gallery/hypergradients.py --output hypergradients.svg
"""

import argparse
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
from sklearn.datasets import load_digits

import eqopt


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--output", help="where to save a picture")
options = parser.parse_args()

TRAINING = 40  # steps of the network, for each step of the schedule


class Schedule(eqx.Module):
    """Eight learning rates, with straight lines between their logarithms."""

    log_rates: jax.Array

    def __call__(self, count):
        places = jnp.linspace(0, TRAINING, len(self.log_rates))
        return jnp.exp(jnp.interp(count, places, self.log_rates))


pixels, digits = map(jnp.asarray, load_digits(return_X_y=True))
pixels = pixels / 16
SEEN, HELD_OUT = len(digits) - 500, jnp.arange(len(digits) - 500, len(digits))
network = eqx.nn.MLP(64, 10, 32, 1, jax.nn.tanh, key=jax.random.key(0))


def loss_fn(model, rows):
    logits = jax.vmap(model)(pixels[rows])
    loss = eqopt.losses.softmax_cross_entropy_with_integer_labels(logits, digits[rows])
    return jnp.mean(loss)


def loss_after_training(opt, key):
    """On digits that the training does not see."""
    params, static = eqx.partition(network, eqx.is_inexact_array)

    def train_step(carry, key):
        params, state = carry
        rows = jax.random.randint(key, (32,), 0, SEEN)
        grads = jax.grad(lambda p: loss_fn(eqx.combine(p, static), rows))(params)
        params, state = opt.step(grads, state, params)
        return (params, state), None

    keys = jax.random.split(key, TRAINING)
    (params, _), _ = jax.lax.scan(train_step, (params, opt.init(params)), keys)
    return loss_fn(eqx.combine(params, static), HELD_OUT)


@eqx.filter_jit
def outer_step(key, opt, outer_state):
    loss, grads = eqx.filter_value_and_grad(loss_after_training)(opt, key)
    opt, outer_state = outer_opt.step(grads, outer_state, opt)
    return opt, outer_state, loss


def rates(opt):
    return jax.vmap(opt.learning_rate)(jnp.arange(TRAINING))


opt = eqopt.SGD(Schedule(jnp.full(8, jnp.log(0.03))), momentum=0.9)
outer_opt = eqopt.Adam(0.1)
outer_state = outer_opt.init(opt)  # an optimizer is a pytree, as a model is

plt.style.use(Path(__file__).with_name("picture.mplstyle"))
figure, (left, right) = plt.subplots(1, 2)
losses = []
for step, key in enumerate(jax.random.split(jax.random.key(1), options.steps)):
    if step % max(1, options.steps // 4) == 0:
        left.semilogy(rates(opt), color="C0", alpha=0.2 + 0.6 * step / options.steps)
    opt, outer_state, loss = outer_step(key, opt, outer_state)
    losses.append(float(loss))

print(f"loss after {TRAINING} steps: {losses[0]:.3f}, then {losses[-1]:.3f}")
left.semilogy(rates(opt), color="C1")
left.set(title="learning rate (orange: last)", xlabel="step of the network")
right.plot(losses, color="C1")
right.set(title=f"loss after {TRAINING} steps", xlabel="step of the schedule")
if options.output:
    figure.savefig(options.output, metadata={"Date": None})
