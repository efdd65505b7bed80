"""Regression: the progression of diabetes, and images behind a bottleneck."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from sklearn.datasets import load_diabetes, load_digits

from .workload import Workload, split


@functools.cache
def diabetes() -> Workload:
    x, y = load_diabetes(return_X_y=True)
    standardised = lambda z: np.asarray((z - z.mean(0)) / z.std(0), np.float32)
    examples, held_out = split((standardised(x), standardised(y)), 3)

    def loss(model, example):
        features, outcome = example
        return (model(features) - outcome) ** 2

    return Workload(
        "Diabetes",
        "A perceptron with two hidden layers of 32 predicts the course of 442 cases from "
        "10 features",
        lambda key: eqx.nn.MLP(10, "scalar", 32, 2, key=key),
        loss,
        examples,
        held_out,
        steps=100,
        target=0.4971,
        batch=32,
    )


WIDTHS = 64, 100, 50, 20, 6, 20, 50, 100, 64


def autoencoder(key):
    """A deep, ill-conditioned network with saturating activations and no shortcuts.

    Weights have the variance 1 / inputs. With the default of Equinox, a third of this,
    almost nothing of an image would be left after eight layers.
    """
    layers = []
    for n, m, k in zip(
        WIDTHS, WIDTHS[1:], jr.split(key, len(WIDTHS) - 1), strict=False
    ):
        linear = eqx.nn.Linear(n, m, key=k)
        weight, bias = jr.normal(k, (m, n)) / n**0.5, jnp.zeros(m)
        linear = eqx.tree_at(lambda x: (x.weight, x.bias), linear, (weight, bias))
        layers += [linear, eqx.nn.Lambda(jnp.tanh)]
    return eqx.nn.Sequential(layers[:-1])


@functools.cache
def bottleneck() -> Workload:
    x, _ = load_digits(return_X_y=True)
    examples, held_out = split(np.asarray(x / 16, np.float32), 4)

    def loss(model, image):
        logits = model(image)
        return jnp.sum(jax.nn.softplus(logits) - image * logits)

    return Workload(
        "Autoencoder",
        "A deep autoencoder, 64-100-50-20-6-20-50-100-64 with tanh, of the digits",
        autoencoder,
        loss,
        examples,
        held_out,
        steps=1000,
        target=17.94,
        batch=64,
    )
