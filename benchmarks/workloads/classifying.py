"""Classifies digits with a convolutional network, and tumours with a perceptron."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits

from eqopt.losses import softmax_cross_entropy_with_integer_labels as cross_entropy

from .workload import Workload, split


def loss(model, example):
    x, label = example
    return cross_entropy(model(x), label)


def network(key):
    keys = jr.split(key, 3)
    return eqx.nn.Sequential(
        [
            eqx.nn.Conv2d(1, 16, kernel_size=3, stride=2, padding=1, key=keys[0]),
            eqx.nn.Lambda(jax.nn.relu),
            eqx.nn.Conv2d(16, 32, kernel_size=3, stride=2, padding=1, key=keys[1]),
            eqx.nn.Lambda(jax.nn.relu),
            eqx.nn.Lambda(jnp.ravel),
            eqx.nn.Linear(32 * 2 * 2, 10, key=keys[2]),
        ]
    )


@functools.cache
def digits() -> Workload:
    x, y = load_digits(return_X_y=True)
    images = np.asarray(x / 16, np.float32).reshape(-1, 1, 8, 8)
    examples, held_out = split((images, np.asarray(y, np.int32)), 4)
    return Workload(
        "Digits",
        "A convolutional network of 6,000 parameters reads 1,797 scanned digits",
        network,
        loss,
        examples,
        held_out,
        steps=300,
        target=0.087,
        batch=32,
    )


@functools.cache
def tumours() -> Workload:
    x, y = load_breast_cancer(return_X_y=True)
    features = np.asarray((x - x.mean(0)) / x.std(0), np.float32)
    examples, held_out = split((features, np.asarray(y, np.int32)), 3)
    return Workload(
        "Tumours",
        "A perceptron with two hidden layers of 32 classifies 569 cases with 30 features",
        lambda key: eqx.nn.MLP(30, 2, 32, 2, key=key),
        loss,
        examples,
        held_out,
        steps=200,
        target=0.1142,
        batch=32,
    )
