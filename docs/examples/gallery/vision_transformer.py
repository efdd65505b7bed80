"""Trains a vision transformer on digits: Muon for its hidden matrices, AdamW elsewhere.

`eqopt.groups` selects parameters, and `eqopt.Partition` gives each group an optimizer.
For comparison, the same network is also trained with AdamW alone.

    python docs/examples/gallery/vision_transformer.py --output vision_transformer.svg
"""

import argparse
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
from sklearn.datasets import load_digits

import eqopt
from eqopt import groups


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--output", help="where to save a picture")
options = parser.parse_args()

# Muon for the matrices between the first layer and the last one.
matrices = groups.leaf(lambda x: x.ndim == 2)
hidden = groups.where(lambda m: (m.attention, m.mlp)) & matrices
labels = groups.label({"hidden": hidden, "rest": groups.everything})
muon = eqopt.Muon(eqopt.schedules.Linear(0.02, 0.0, options.steps))
adamw = eqopt.AdamW(eqopt.schedules.Linear(0.01, 0.0, options.steps))
by_groups = eqopt.Partition({"hidden": muon, "rest": adamw}, labels)
runs = {"AdamW": adamw, "Muon and AdamW": by_groups}

# 16 patches of 2 x 2 pixels for each digit.
pixels, digits = map(jnp.asarray, load_digits(return_X_y=True))
patches = pixels.reshape(-1, 4, 2, 4, 2).swapaxes(2, 3).reshape(-1, 16, 4) / 16
train, test = (patches[300:], digits[300:]), (patches[:300], digits[:300])
WIDTH = 32


class VisionTransformer(eqx.Module):
    embedding: eqx.nn.Linear
    positions: jax.Array
    norms: list[eqx.nn.LayerNorm]
    attention: eqx.nn.MultiheadAttention
    mlp: eqx.nn.MLP
    head: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key, 5)
        self.embedding = eqx.nn.Linear(4, WIDTH, key=keys[0])
        self.positions = 0.1 * jax.random.normal(keys[1], (16, WIDTH))
        self.norms = [eqx.nn.LayerNorm(WIDTH), eqx.nn.LayerNorm(WIDTH)]
        self.attention = eqx.nn.MultiheadAttention(4, WIDTH, key=keys[2])
        self.mlp = eqx.nn.MLP(WIDTH, WIDTH, 4 * WIDTH, 1, jax.nn.gelu, key=keys[3])
        self.head = eqx.nn.Linear(WIDTH, 10, key=keys[4])

    def __call__(self, patches):
        x = jax.vmap(self.embedding)(patches) + self.positions
        y = jax.vmap(self.norms[0])(x)
        x = x + self.attention(y, y, y)
        x = x + jax.vmap(self.mlp)(jax.vmap(self.norms[1])(x))
        return self.head(jnp.mean(x, axis=0))


def loss_fn(model, patches, digits):
    logits = jax.vmap(model)(patches)
    loss = eqopt.losses.softmax_cross_entropy_with_integer_labels(logits, digits)
    return jnp.mean(loss)


@eqx.filter_jit(donate="all-except-first")
def train_step(opt_and_key, model, state):
    opt, key = opt_and_key
    rows = jax.random.randint(key, (64,), 0, len(train[1]))
    grads = eqx.filter_grad(loss_fn)(model, train[0][rows], train[1][rows])
    return opt.step(grads, state, model)


@eqx.filter_jit
def accuracy(model):
    guesses = jnp.argmax(jax.vmap(model)(test[0]), axis=1)
    return 100 * jnp.mean(guesses == test[1])


print(groups.table(labels, VisionTransformer(jax.random.key(0))))

plt.style.use(Path(__file__).with_name("picture.mplstyle"))
figure, axes = plt.subplots()
axes.set(title="digits read correctly, of 300 not seen in training (%)", xlabel="step")

for name, opt in runs.items():
    model = VisionTransformer(jax.random.key(0))
    state = opt.init(model)
    history = []
    for step, key in enumerate(jax.random.split(jax.random.key(1), options.steps), 1):
        model, state = train_step((opt, key), model, state)
        if step % 10 == 0:
            history.append((step, float(accuracy(model))))
    print(f"{name}: {history[-1][1]:.1f} % of the test digits read correctly")
    axes.plot(*zip(*history, strict=True), label=name)

axes.legend()
if options.output:
    figure.savefig(options.output, metadata={"Date": None})
