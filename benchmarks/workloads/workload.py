"""What a workload is."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray


class Workload(NamedTuple):
    """Something to train, and when it counts as trained.

    A seed decides on the first model and on the batches; the data, and what is held out
    of them, are the same for all.

    **Attributes:**

    - `title`: for tables and pictures.
    - `what`: what it is, in a sentence.
    - `model`: the model to begin with: of a key.
    - `loss`: the loss of one example: of `(model, example)`.
    - `examples`: what is seen in training, stacked.
    - `held_out`: what the validation loss is of, stacked. Nothing is trained on it.
    - `steps`: the budget.
    - `target`: the validation loss that AdamW reaches at 80 % of the budget: the mean of
        three seeds at its best learning rate.
    - `batch`: the examples of a step; `None` for all of them in every step.
    - `held_out_loss`: of one that is held out, if it is another one.
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
    """All but one example in `every`, and these."""
    rows = np.arange(len(jax.tree.leaves(data)[0]))
    is_held_out = rows % every == 0
    return tuple(
        jax.tree.map(lambda x, of=of: x[of], data) for of in (~is_held_out, is_held_out)
    )
