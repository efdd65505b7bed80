"""A loss of a whole model, as a function of the arrays to differentiate."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from .._errors import InputError
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
        is_number = eqx.is_array_like(out) and np.shape(out) == ()
        if not (is_number and jnp.issubdtype(jnp.result_type(out), np.floating)):
            raise InputError(
                owner,
                f"`{name}` must return a real floating-point number, but returned "
                f"{eqx.tree_pformat(out)}. Return only the loss, the mean over a batch.",
            )
        return out

    return value
