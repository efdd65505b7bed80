"""The tasks: a language model of bytes, and a network that classifies digits.

Nothing is downloaded. The text is the reference of the Python language, which is part of
Python for `help`. The digits are part of scikit-learn.
"""

import functools
import pydoc_data.topics
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float
from sklearn.datasets import load_digits

import eqopt

from ..scaling.transformer import Shape, Transformer, loss as language_loss


class Task(NamedTuple):
    """A model to train, with its data.

    **Attributes:**

    - `name`: the name in the picture.
    - `model`: a function of the seed that returns the initial model.
    - `loss`: a function of `(model, batch)`.
    - `batch`: a function of `(seed, step)` that returns the batch of a step.
    - `held_out`: data for the final loss, which are not used in training.
    - `steps`: the number of training steps.
    """

    name: str
    model: Callable[[int], Any]
    loss: Callable[[Any, Any], Float[Array, ""]]
    batch: Callable[[int, int], Any]
    held_out: Any
    steps: int


SHAPE = Shape(vocabulary=128, width=64, heads=4, hidden=128, layers=1, length=48)


@functools.cache
def language() -> Task:
    """Predicts each next byte in sequences of 48. A tenth of the text is held out."""
    topics = pydoc_data.topics.topics
    text = "\n\n".join(topics[name] for name in sorted(topics))
    codes = np.frombuffer(text.encode("ascii", "replace"), np.uint8).astype(np.int32)
    size = SHAPE.length + 1
    pieces = codes[: len(codes) // size * size].reshape(-1, size)
    seen, held_out = np.delete(pieces, np.s_[::10], axis=0).ravel(), pieces[::10]

    def batch(seed, step):
        starts = np.random.default_rng((seed, step)).integers(len(seen) - size, size=16)
        return seen[starts[:, None] + np.arange(size)]

    model = lambda seed: Transformer(SHAPE, jr.key(seed))
    return Task("bytes of text", model, language_loss, batch, held_out, steps=300)


@functools.cache
def digits() -> Task:
    """Classifies scans of 8 x 8 pixels. One in four is held out."""
    x, y = load_digits(return_X_y=True)
    data = np.asarray(x / 16, np.float32).reshape(-1, 1, 8, 8), np.asarray(y, np.int32)
    held_out = tuple(part[::4] for part in data)
    seen = tuple(np.delete(part, np.s_[::4], axis=0) for part in data)

    def batch(seed, step):
        rows = np.random.default_rng((seed, step)).choice(len(seen[0]), 64)
        return tuple(part[rows] for part in seen)

    def loss(model, batch):
        images, labels = batch
        logits = jax.vmap(model)(images.astype(model.layers[-1].weight.dtype))
        losses = eqopt.losses.softmax_cross_entropy_with_integer_labels(logits, labels)
        return jnp.mean(losses)

    return Task("digits", _network, loss, batch, held_out, steps=200)


def _network(seed: int) -> eqx.nn.Sequential:
    keys = jr.split(jr.key(seed), 3)
    return eqx.nn.Sequential(
        [
            eqx.nn.Conv2d(1, 16, kernel_size=3, stride=2, padding=1, key=keys[0]),
            eqx.nn.Lambda(jax.nn.relu),
            eqx.nn.Conv2d(16, 32, kernel_size=3, padding=1, key=keys[1]),
            eqx.nn.Lambda(jax.nn.relu),
            eqx.nn.Lambda(jnp.ravel),
            eqx.nn.Linear(32 * 4 * 4, 10, key=keys[2]),
        ]
    )


TASKS = {"language": language, "digits": digits}
