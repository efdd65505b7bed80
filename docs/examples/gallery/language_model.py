"""Trains a language model in half the memory: 8.3 bytes per parameter, not 16.

Weights and gradients are bfloat16. The state holds AdamW's two moments in 8 bits each,
and the low 16 bits of each float32 weight, so no update is lost to rounding.

    python docs/examples/gallery/language_model.py --output language_model.svg
"""

import argparse
from pathlib import Path
from pydoc_data.topics import topics

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import eqopt
from eqopt import storage


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--output", help="where to save a picture")
options = parser.parse_args()

adamw = eqopt.AdamW(1e-2)
in_8_bits = eqopt.StoreState(adamw, storage.BlockwiseQuantized())
in_half = eqopt.StoreParams(in_8_bits, storage.SplitMasterWeights())
runs = {"float32": (jnp.float32, adamw), "bfloat16": (jnp.bfloat16, in_half)}

# The reference of the Python language, which comes with Python's `help`.
text = "\n".join(topics.values()).encode("ascii", "replace")
codes = jnp.asarray(np.frombuffer(text, np.uint8), jnp.int32)
WIDTH, LENGTH = 64, 32


class Transformer(eqx.Module):
    embedding: eqx.nn.Embedding
    positions: jax.Array
    norms: list[eqx.nn.LayerNorm]
    attention: eqx.nn.MultiheadAttention
    mlp: eqx.nn.MLP
    head: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key, 5)
        self.embedding = eqx.nn.Embedding(128, WIDTH, key=keys[0])
        self.positions = 0.02 * jax.random.normal(keys[1], (LENGTH, WIDTH))
        self.norms = [eqx.nn.LayerNorm(WIDTH), eqx.nn.LayerNorm(WIDTH)]
        self.attention = eqx.nn.MultiheadAttention(4, WIDTH, key=keys[2])
        self.mlp = eqx.nn.MLP(WIDTH, WIDTH, 4 * WIDTH, 1, jax.nn.gelu, key=keys[3])
        self.head = eqx.nn.Linear(WIDTH, 128, key=keys[4])

    def __call__(self, codes):
        x = jax.vmap(self.embedding)(codes) + self.positions
        y = jax.vmap(self.norms[0])(x)
        x = x + self.attention(y, y, y, mask=jnp.tri(LENGTH, dtype=bool))
        x = x + jax.vmap(self.mlp)(jax.vmap(self.norms[1])(x))
        return jax.vmap(self.head)(x)


def loss_fn(model, batch):
    logits = jax.vmap(model)(batch[:, :-1]).astype(jnp.float32)
    loss = eqopt.losses.softmax_cross_entropy_with_integer_labels(logits, batch[:, 1:])
    return jnp.mean(loss) / jnp.log(2)  # bits per byte of text


@eqx.filter_jit(donate="all-except-first")
def train_step(opt_and_key, model, state):
    opt, key = opt_and_key
    starts = jax.random.randint(key, (32, 1), 0, len(codes) - LENGTH)
    batch = codes[starts + jnp.arange(LENGTH + 1)]
    loss, grads = eqx.filter_value_and_grad(loss_fn)(model, batch)
    model, state = opt.step(grads, state, model)
    return model, state, loss


plt.style.use(Path(__file__).with_name("picture.mplstyle"))
figure, (left, right) = plt.subplots(1, 2)
left.set(title="bits per byte of text", xlabel="step")
right.set(title="bytes per parameter", xlim=(0, 18))
right.invert_yaxis()

for row, (name, (dtype, opt)) in enumerate(runs.items()):
    model = eqopt.tree.cast(Transformer(jax.random.key(0)), dtype)
    state = opt.init(model)
    weights = eqopt.tree.nbytes(model).total / eqopt.tree.size(model)
    moments = eqopt.tree.nbytes(state).total / eqopt.tree.size(model)
    losses = []
    for key in jax.random.split(jax.random.key(1), options.steps):
        model, state, loss = train_step((opt, key), model, state)
        losses.append(float(loss))
    last, size = np.mean(losses[-20:]), 2 * weights + moments
    print(f"{name}: {size:.1f} bytes per parameter, {last:.2f} bits per byte of text")

    left.plot(losses, label=name, linestyle="-:"[row])
    starts, colors = [0, weights, 2 * weights], ["C2", "C3", "#a8a8a8"]
    bars = right.barh(name, [weights, weights, moments], left=starts, color=colors)
    right.text(size, row, f" {size:.1f}", va="center")
    if row == 0:
        labels = ["weights", "gradients", "state"]
        right.bar_label(bars, labels, label_type="center", color="black")

left.legend()
if options.output:
    figure.savefig(options.output, metadata={"Date": None})
