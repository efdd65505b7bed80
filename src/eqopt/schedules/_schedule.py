"""What a schedule is."""

import abc
from typing import Any, ClassVar

from jaxtyping import Array, Float

from .._construction import Module
from .._types import RealScalarLike
from ._dtypes import IntScalarLike


class AbstractSchedule(Module):
    """A hyperparameter as a function of the number of steps taken so far.

    Wherever a hyperparameter may be a schedule, any function of the count will do, such
    as a `lambda`. A subclass of this one has its numbers as leaves: they can be changed
    without a new trace, mapped over and differentiated through.

    Schedules are added and multiplied, to others, to functions of the count and to
    numbers: `a + b`, `a - b`, `a * b`, `0.1 * a`, `a / 2`, `-a`.

    !!! example

        ```python
        class Hyperbola(eqopt.schedules.AbstractSchedule):
            init_value: float | Array
            decay_rate: float | Array

            def __call__(self, count):
                steps = jnp.asarray(count, jnp.float32)
                return self.init_value / (1 + self.decay_rate * steps)
        ```
    """

    is_schedule: ClassVar[bool] = True  # what the floors below know it by

    # Numbers and arrays of NumPy leave arithmetic with a schedule to the schedule.
    __array_ufunc__ = None

    @abc.abstractmethod
    def __call__(self, count: IntScalarLike) -> Float[Array, ""]:
        """The value in the step before which `count` steps have been taken.

        **Arguments:**

        - `count`: an integer or an array of integers, traced or not; 0 in the first
            step. A negative count is taken for 0. The schedules here take many counts at
            once, as in `schedule(jnp.arange(100))`; a function does under `jax.vmap`.

        **Returns:**

        An array of the shape of `count`, of dtype float32, or float64 if the schedule
        holds a float64 array.

        **Raises:**

        A `TypeError` if `count` is no integer.
        """

    def clip(
        self,
        min_value: RealScalarLike | None = None,
        max_value: RealScalarLike | None = None,
    ) -> "AbstractSchedule":
        """This schedule within bounds, an [`eqopt.schedules.Clipped`][].

        **Arguments:**

        - `min_value`: the lowest value, a number or a 0-d array, or `None` for no bound.
        - `max_value`: the highest, likewise.
        """
        return _algebra().Clipped(self, min_value, max_value)

    def __add__(self, other: Any) -> "AbstractSchedule":
        return _combined("Sum", self, other)

    def __radd__(self, other: Any) -> "AbstractSchedule":
        return _combined("Sum", other, self)

    def __sub__(self, other: Any) -> "AbstractSchedule":
        negative = _combined("Product", -1.0, other) if callable(other) else -other
        return _combined("Sum", self, negative)

    def __rsub__(self, other: Any) -> "AbstractSchedule":
        return _combined("Sum", other, -self)

    def __mul__(self, other: Any) -> "AbstractSchedule":
        return _combined("Product", self, other)

    def __rmul__(self, other: Any) -> "AbstractSchedule":
        return _combined("Product", other, self)

    def __truediv__(self, other: Any) -> "AbstractSchedule":
        if callable(other):
            return NotImplemented
        return _combined("Product", self, 1 / other)

    def __neg__(self) -> "AbstractSchedule":
        return _combined("Product", -1.0, self)


def _algebra() -> Any:
    from . import _algebra  # which has subclasses of the class here

    return _algebra


def _combined(kind: str, a: Any, b: Any) -> Any:
    algebra = _algebra()
    operands = algebra.operand(a), algebra.operand(b)
    if any(x is None for x in operands):
        return NotImplemented
    return algebra.flattened(getattr(algebra, kind), *operands)
