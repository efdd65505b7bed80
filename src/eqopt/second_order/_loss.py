"""A loss of a whole model, as a function of the arrays to differentiate."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .._types import Params, PyTree


def loss_of_arrays(
    owner: str, name: str, loss: Callable[..., Any], params: Params, args: tuple
) -> Callable[[PyTree], Any]:
    """`loss` at `args`, with the given arrays instead of the arrays in `params`.

    **Arguments:**

    - `owner`, `name`: the called function, and the name of `loss` among its arguments.
    """

    def value(arrays: PyTree) -> Any:
        out = loss(eqx.combine(arrays, params), *args)
        if not jtu.all_leaves([out]):
            raise ValueError(
                f"{owner}: `{name}` must return a real number, but returned a "
                f"{type(out).__name__}. Return only the loss, without auxiliary output."
            )
        shape, dtype = np.shape(out), jnp.result_type(out)
        if shape != () or not jnp.issubdtype(dtype, np.floating):
            raise ValueError(
                f"{owner}: `{name}` must return a real floating-point number, but "
                f"returned an array of shape {shape} and dtype {dtype}. Take the mean "
                "over the batch, and return no auxiliary output."
            )
        return out

    return value
