"""A value that stays."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._checks import check_range
from .._types import RealScalarLike
from ._dtypes import IntScalarLike, as_count, as_reals, of_counts
from ._schedule import AbstractSchedule


class Constant(AbstractSchedule):
    r"""Always the same value: $s(t) = c$.

    It is of use as a part of a [`eqopt.schedules.Join`][].

    **Arguments:**

    - `value`: $c$, a number or a 0-d array. It may be infinite: a threshold that does
        not apply yet.

    **Raises:**

    A `ValueError` if `value` is NaN or has axes.
    """

    value: RealScalarLike

    def __check_init__(self):
        check_range(self, "value", float("-inf"))

    @of_counts
    def __call__(self, count: IntScalarLike) -> Float[Array, ""]:
        as_count(count)
        (value,) = as_reals(self, "value")
        # A copy: whoever keeps it in a state may donate that.
        return jnp.array(value)
