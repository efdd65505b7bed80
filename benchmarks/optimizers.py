"""All optimizers for batches, in both libraries, and their inputs."""

from typing import Any

import equinox as eqx
import jax
from tests.methods import METHODS
from tests.methods.method import Method


OPTIMIZERS = {name: method for name, method in METHODS.items() if method.rates}


def evaluate(method: Method, problem: Any, params: Any, batch: Any) -> Any:
    """The gradients, and all other inputs that an optimizer may use.

    `problem` has a `loss` of `(params, example)` and a `mean_loss` of `(params, batch)`.
    """
    value_fn = lambda params: problem.mean_loss(params, batch)
    value, grads = eqx.filter_value_and_grad(value_fn)(params)
    if method.per_example:
        grads = jax.vmap(eqx.filter_grad(problem.loss), (None, 0))(params, batch)
    return grads, {"value": value, "grad": grads, "value_fn": value_fn}
