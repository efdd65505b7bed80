"""Trains a population in which the worst members copy the best, and vary their rates.

Sixteen networks and their optimizers are stacked along a leading axis, and
`eqx.filter_vmap` steps all of them at once. To copy members, index the trees.

    python docs/examples/gallery/population.py --output population.svg
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
parser.add_argument("--steps", type=int, default=400)
parser.add_argument("--output", help="where to save a picture")
options = parser.parse_args()

MEMBERS, EVERY = 16, 20

pixels, digits = map(jnp.asarray, load_digits(return_X_y=True))
pixels = pixels / 16
validation = jnp.arange(len(digits) - 500, len(digits))


def loss_fn(model, rows):
    logits = jax.vmap(model)(pixels[rows])
    loss = eqopt.losses.softmax_cross_entropy_with_integer_labels(logits, digits[rows])
    return jnp.mean(loss)


@eqx.filter_vmap
def start(rate, key):
    opt = eqopt.SGD(rate, momentum=0.9)
    model = eqx.nn.MLP(64, 10, 64, 1, key=key)
    return opt, model, opt.init(model)


mapped = eqx.if_array(0)


@eqx.filter_jit
@eqx.filter_vmap(in_axes=(None, mapped, mapped, mapped))
def train_step(key, opt, model, state):
    rows = jax.random.randint(key, (32,), 0, len(digits) - 500)
    grads = eqx.filter_grad(loss_fn)(model, rows)
    return opt.step(grads, state, model)


@eqx.filter_jit
def exploit_and_explore(key, members):
    """The worst quarter copies the best, and changes its rates by up to 30 %."""
    opts, models, _ = members
    losses = eqx.filter_vmap(lambda model: loss_fn(model, validation))(models)
    order = jnp.argsort(losses)
    quarter = MEMBERS // 4
    parents = jnp.arange(MEMBERS).at[order[-quarter:]].set(order[:quarter])
    take = lambda x: x[parents] if eqx.is_array(x) else x
    opts, models, states = jax.tree.map(take, members)
    is_new = parents != jnp.arange(MEMBERS)
    noise = jax.random.uniform(key, (MEMBERS,), minval=0.7, maxval=1.3)
    rates = opts.learning_rate * jnp.where(is_new, noise, 1.0)
    return (eqopt.tree.set(opts, learning_rate=rates), models, states), losses


key1, key2 = jax.random.split(jax.random.key(0))
opts, models, states = start(
    jnp.geomspace(1e-4, 1.0, MEMBERS), jax.random.split(key1, MEMBERS)
)
rates, losses = [], []
for step, key in enumerate(jax.random.split(key2, options.steps), 1):
    models, states = train_step(key, opts, models, states)
    if step % EVERY == 0:
        rates.append(opts.learning_rate)
        members, now = exploit_and_explore(key, (opts, models, states))
        opts, models, states = members
        losses.append(now)

best = jnp.argmin(losses[-1])
print(f"best loss {losses[-1][best]:.3f}, at a learning rate of {rates[-1][best]:.3f}")

plt.style.use(Path(__file__).with_name("picture.mplstyle"))
figure, (left, right) = plt.subplots(1, 2)
steps = EVERY * jnp.arange(1, len(rates) + 1)
left.semilogy(steps, jnp.stack(rates), color="C0", alpha=0.5)
left.set(title="learning rate of each member", xlabel="step")
right.semilogy(steps, jnp.stack(losses), color="C0", alpha=0.5)
right.set(title="loss on validation digits", xlabel="step")
if options.output:
    figure.savefig(options.output, metadata={"Date": None})
