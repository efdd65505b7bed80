"""What a schedule is."""

import abc

import equinox as eqx
from jaxtyping import Array, Float

from ._dtypes import IntScalarLike


class AbstractSchedule(eqx.Module):
    """A hyperparameter as a function of the number of steps taken so far.

    Wherever a hyperparameter may be a schedule, any function of the count will do, such
    as a `lambda`. A subclass of this one has its numbers as leaves: they can be changed
    without a new trace, mapped over and differentiated through.

    !!! example

        ```python
        class InverseSqrt(eqopt.schedules.AbstractSchedule):
            peak_value: float | Array

            def __call__(self, count):
                return self.peak_value / jnp.sqrt(1 + jnp.asarray(count, jnp.float32))
        ```
    """

    @abc.abstractmethod
    def __call__(self, count: IntScalarLike) -> Float[Array, ""]:
        """The value in the step before which `count` steps have been taken.

        **Arguments:**

        - `count`: an integer or a 0-d integer array, traced or not; 0 in the first
            step. A negative count is taken for 0. For many counts at once write
            `jax.vmap(schedule)(counts)`.

        **Returns:**

        A 0-d array of dtype float32, or float64 if the schedule holds a float64 array.

        **Raises:**

        A `TypeError` if `count` is no integer, and a `ValueError` if it has axes.
        """
