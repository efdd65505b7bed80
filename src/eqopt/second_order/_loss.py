"""A loss of a whole model, as a function of the arrays to differentiate."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from .._types import Params


def loss_of_arrays(
    owner: str, name: str, loss: Callable[..., Any], params: Params, args: tuple
) -> Callable[[PyTree], Any]:
    """`loss` at `args`, with the arrays in the positions of those in `params`.

    **Arguments:**

    - `owner`, `name`: what the user calls, and what `loss` is called there.
    """

    def value(arrays: PyTree) -> Any:
        out = loss(eqx.combine(arrays, params), *args)
        shape, dtype = np.shape(out), jnp.result_type(out)
        if shape != () or not jnp.issubdtype(dtype, np.floating):
            raise ValueError(
                f"{owner}: `{name}` must return one real number of floating dtype, but "
                f"returned an array of shape {shape} and dtype {dtype}. Take the mean "
                "over the batch, and return no auxiliary output."
            )
        return out

    return value
