"""Fine-tunes a network on ten examples: its first layers are frozen.

A network learns to read digits. Then it gets a new last layer, to tell odd digits from
even ones. For the frozen layers, the optimizer keeps no state.

    python docs/examples/gallery/fine_tuning.py --output fine_tuning.svg
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
parser.add_argument("--steps", type=int, default=150)
parser.add_argument("--output", help="where to save a picture")
options = parser.parse_args()

adamw = eqopt.AdamW(0.02)
encoder = groups.where(lambda m: m.encoder)
head_alone = eqopt.SelectiveTransform(adamw, freeze_mask=encoder)

pixels, digits = map(jnp.asarray, load_digits(return_X_y=True))
pixels = pixels / 16
many = pixels[:1000], digits[:1000]
few = pixels[:10], digits[:10] % 2
test = pixels[1000:], digits[1000:] % 2


class Classifier(eqx.Module):
    encoder: eqx.nn.MLP
    head: eqx.nn.Linear

    def __init__(self, key):
        key1, key2 = jax.random.split(key)
        self.encoder = eqx.nn.MLP(
            64, 32, 128, 1, key=key1, final_activation=jax.nn.relu
        )
        self.head = eqx.nn.Linear(32, 10, key=key2)

    def __call__(self, pixels):
        return self.head(self.encoder(pixels))


@eqx.filter_grad
def grad_fn(model, pixels, digits):
    logits = jax.vmap(model)(pixels)
    loss = eqopt.losses.softmax_cross_entropy_with_integer_labels(logits, digits)
    return jnp.mean(loss)


@eqx.filter_jit
def train_step(opt, data, model, state):
    return opt.step(grad_fn(model, *data), state, model)


@eqx.filter_jit
def accuracy(model):
    guesses = jnp.argmax(jax.vmap(model)(test[0]), axis=1)
    return 100 * jnp.mean(guesses == test[1])


pretrained = Classifier(jax.random.key(0))
state = adamw.init(pretrained)
for _ in range(2 * options.steps):
    pretrained, state = train_step(adamw, many, pretrained, state)

new_head = eqx.nn.Linear(32, 2, key=jax.random.key(1))
pretrained = eqx.tree_at(lambda m: m.head, pretrained, new_head)
fresh = eqx.tree_at(lambda m: m.head, Classifier(jax.random.key(2)), new_head)
runs = {
    "encoder frozen": (pretrained, head_alone),
    "all of it fine-tuned": (pretrained, adamw),
    "from scratch": (fresh, adamw),
}
plt.style.use(Path(__file__).with_name("picture.mplstyle"))
figure, axes = plt.subplots()
axes.set(title="odd and even digits told apart, after ten examples (%)", xlabel="step")
for name, (model, opt) in runs.items():
    state = opt.init(model)
    history = []
    for _ in range(options.steps):
        model, state = train_step(opt, few, model, state)
        history.append(float(accuracy(model)))
    size = eqopt.tree.nbytes(state).total
    print(f"{name}: {history[-1]:.1f} % right, {size:,} bytes of state")
    axes.plot(history, label=name)

axes.legend()
if options.output:
    figure.savefig(options.output, metadata={"Date": None})
