"""The definition of a workload."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray


class Workload(NamedTuple):
    """A model to train, and a target for its loss.

    A seed determines the initial model and the batches. The data, and the held-out part,
    are the same for all seeds.

    **Attributes:**

    - `title`: the title in tables and pictures.
    - `what`: a description in one sentence.
    - `model`: a function of a key that returns the initial model.
    - `loss`: the loss of one example, a function of `(model, example)`.
    - `examples`: the training examples, stacked.
    - `held_out`: the examples for the validation loss, stacked. They are not used in
        training.
    - `steps`: the budget.
    - `target`: the validation loss that AdamW reaches at 80 % of the budget: the mean of
        three seeds at its best learning rate.
    - `batch`: the number of examples in a step; `None` for all of them in every step.
    - `held_out_loss`: the loss of one held-out example, if it is another function.
    """

    title: str
    what: str
    model: Callable[[PRNGKeyArray], Any]
    loss: Callable[[Any, Any], Float[Array, ""]]
    examples: Any
    held_out: Any
    steps: int
    target: float
    batch: int | None
    held_out_loss: Callable[[Any, Any], Float[Array, ""]] | None = None

    def batch_of(self, key: PRNGKeyArray) -> Any:
        """The examples of a step."""
        if self.batch is None:
            return self.examples
        size = len(jax.tree.leaves(self.examples)[0])
        rows = jr.randint(key, (self.batch,), 0, size)
        return jax.tree.map(lambda x: jnp.asarray(x)[rows], self.examples)

    def mean_loss(self, model: Any, examples: Any) -> Float[Array, ""]:
        return jnp.mean(jax.vmap(self.loss, (None, 0))(model, examples))

    def validation_loss(self, model: Any) -> Float[Array, ""]:
        loss = self.held_out_loss or self.loss
        return jnp.mean(jax.vmap(loss, (None, 0))(model, self.held_out))


def split(data: Any, every: int) -> tuple[Any, Any]:
    """Splits data: all examples except one in `every`, and the others."""
    rows = np.arange(len(jax.tree.leaves(data)[0]))
    is_held_out = rows % every == 0
    return tuple(
        jax.tree.map(lambda x, of=of: x[of], data) for of in (~is_held_out, is_held_out)
    )
