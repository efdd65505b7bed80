"""The problems: small and fixed, each with its own difficulty."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from sklearn.datasets import load_breast_cancer, load_digits


class Problem(NamedTuple):
    """A problem to train on.

    **Attributes:**

    - `title`: the title in the table.
    - `params`: the initial parameters.
    - `loss`: the loss of one example, a function of `(params, example)`.
    - `data`: all examples, stacked.
    - `steps`: the number of training steps.
    - `batch`: the number of examples per step; `None` for all of them.
    - `share`: the share of the initial loss that every optimizer must reach.
    """

    title: str
    params: Any
    loss: Callable[[Any, Any], Array]
    data: Any
    steps: int
    share: float
    batch: int | None = None

    def mean_loss(self, params: Any, data: Any) -> Array:
        return jnp.mean(jax.vmap(self.loss, (None, 0))(params, data))

    def batches(self) -> Any:
        """The batches of all steps, stacked. They are drawn from a fixed seed."""
        size = len(jax.tree.leaves(self.data)[0])
        rng = np.random.default_rng(0)
        rows = [
            np.arange(size) if self.batch is None else rng.choice(size, self.batch)
            for _ in range(self.steps)
        ]
        return jax.tree.map(lambda x: x[np.stack(rows)], self.data)


_NO_DATA = jnp.zeros(1)


def quadratic() -> Problem:
    scales = jnp.geomspace(1e-2, 1.0, 20)
    start = jnp.where(jnp.arange(20) % 2 == 0, 1.0, -2.0)
    return Problem(
        "Quadratic",
        {"x": start},
        lambda params, _: 0.5 * jnp.sum(scales * params["x"] ** 2),
        _NO_DATA,
        steps=500,
        share=0.25,
    )


def rosenbrock() -> Problem:
    def loss(params, _):
        x, y = params["x"], params["y"]
        return jnp.sum((1 - x) ** 2 + 100 * (y - x**2) ** 2)

    # Not scalars, because SM3 in Optax does not accept them.
    start = {"x": jnp.array([-1.2]), "y": jnp.array([1.0])}
    return Problem("Rosenbrock", start, loss, _NO_DATA, steps=1000, share=0.25)


def logistic_regression() -> Problem:
    x, y = load_breast_cancer(return_X_y=True)
    x = jnp.asarray((x - x.mean(0)) / x.std(0), jnp.float32)
    data = (x, jnp.asarray(2 * y - 1, jnp.float32))

    def loss(params, example):
        features, sign = example
        logit = features @ params["weight"] + params["bias"][0]
        return jax.nn.softplus(-sign * logit)

    # Not zero, because some optimizers scale steps by the size of the parameters.
    weight = 0.1 * jax.random.normal(jax.random.key(0), (30,))
    params = {"weight": weight, "bias": jnp.array([0.1])}
    return Problem("Breast cancer", params, loss, data, steps=200, share=0.5)


def digits() -> Problem:
    x, y = load_digits(return_X_y=True)
    data = jnp.asarray(x / 16, jnp.float32).reshape(-1, 1, 8, 8), jnp.asarray(y)
    keys = jax.random.split(jax.random.key(0), 3)
    model = eqx.nn.Sequential(
        [
            eqx.nn.Conv2d(1, 16, kernel_size=3, stride=2, padding=1, key=keys[0]),
            eqx.nn.Lambda(jax.nn.relu),
            eqx.nn.Lambda(jnp.ravel),
            eqx.nn.Linear(16 * 4 * 4, 32, key=keys[1]),
            eqx.nn.Lambda(jax.nn.relu),
            eqx.nn.Linear(32, 10, key=keys[2]),
        ]
    )
    # A list of arrays, because some transformations of Optax do not accept a model.
    params, static = eqx.partition(model, eqx.is_inexact_array)
    leaves, treedef = jax.tree.flatten(params)

    def loss(leaves, example):
        image, label = example
        logits = eqx.combine(treedef.unflatten(leaves), static)(image)
        return jax.nn.logsumexp(logits) - logits[label]

    return Problem("Digits", leaves, loss, data, steps=200, share=0.5, batch=64)


@functools.cache
def problems() -> tuple[Problem, ...]:
    return quadratic(), rosenbrock(), logistic_regression(), digits()
