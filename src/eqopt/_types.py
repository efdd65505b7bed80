"""Type aliases and the bounds in them, and nothing else."""

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

import numpy as np
from jaxtyping import Array, Float, Inexact, Integer, PRNGKeyArray


if TYPE_CHECKING:
    from typing_extensions import TypeVar as _TypeVar

    # jaxtyping's class is unknown to type checkers, and so would be what contains it.
    _Leaf = _TypeVar("_Leaf", default=Any)
    PyTree: TypeAlias = Any | _Leaf
else:
    from jaxtyping import PyTree as PyTree


@dataclasses.dataclass(frozen=True)
class Interval:
    """The bounds of a real number, for `Annotated`. NaN is in no interval."""

    low: float = -math.inf
    high: float = math.inf
    includes_low: bool = True
    includes_high: bool = True
    advice: str = ""  # the end of the message for a number outside

    def holds(self, x: Any) -> Any:
        """Whether a number is inside, or which elements of an array are."""
        is_high_enough = x >= self.low if self.includes_low else x > self.low
        is_low_enough = x <= self.high if self.includes_high else x < self.high
        return is_high_enough & is_low_enough

    def __str__(self) -> str:
        left = "(["[self.includes_low and self.low > -math.inf]
        right = ")]"[self.includes_high and self.high < math.inf]
        return f"{left}{self.low}, {self.high}{right}"


@dataclasses.dataclass(frozen=True)
class AtLeast:
    """The bounds of an integer, for `Annotated`."""

    low: int
    at_most: int = 2**63 - 1

    def holds(self, x: Any) -> Any:
        """Whether an integer is inside."""
        return self.low <= x <= self.at_most


Params: TypeAlias = PyTree
"""A whole model, or another tree in which every inexact array is a parameter."""

# `PyTree[Inexact[Array, "..."]]` would cost 60 microseconds per leaf per call; the
# equations check dtype and shape of each distinct leaf once, when they are traced.
Updates: TypeAlias = PyTree
"""A tree like the parameters, with inexact arrays, or `None` where nothing is updated."""

# Such a tree in a state whose numbers are never negative, such as second moments.
Nonnegative: TypeAlias = Annotated[Updates, "nonnegative"]

# Such a tree with something of another shape for each parameter, such as a norm.
PerLeaf: TypeAlias = Annotated[PyTree, "per_leaf"]

# Such a tree with parts of the parameters themselves, which no storage may round.
Exact: TypeAlias = Annotated[PyTree, "exact"]

# A number that a state only records, such as the rate of the last step.
Recorded: TypeAlias = Annotated[Float[Array, ""], "recorded"]

# The class of a model, of a state and of any tree: a step returns what it got.
Model = TypeVar("Model")
SameState = TypeVar("SameState")
Tree = TypeVar("Tree")

State: TypeAlias = Annotated[PyTree, "state"]
"""Anything that `init` returns and `update` accepts and returns."""

Mask: TypeAlias = Annotated[PyTree[bool] | Callable[[Params], PyTree[bool]], "mask"]
"""A tree of bools like the parameters, or a prefix, or a function that returns one."""

# What equations are about: an array of the parameters, of the updates or of a slot. In
# one equation, all of them have one shape. And a value that all leaves share.
Leaf: TypeAlias = Inexact[Array, "*leaf"]
RealLeaf: TypeAlias = Float[Array, "*leaf"]
Scalar: TypeAlias = Float[Array, ""]

# A Python number (static under `eqx.filter_jit`) or a 0-d array (traced). The class
# that has the hyperparameter checks that an array is 0-d, for a better message.
RealScalarLike: TypeAlias = float | int | Array | np.ndarray | np.generic

# An integer that is data: a Python integer is static, an array is traced.
IntegerLike: TypeAlias = int | np.integer | Integer[Array | np.ndarray, ""]

# An integer that determines the compiled program.
StaticInteger: TypeAlias = int | np.integer

# A schedule takes the number of steps taken so far.
Schedule: TypeAlias = Callable[[Any], Any]

ScalarOrSchedule: TypeAlias = RealScalarLike | Schedule
"""A real number or a schedule, in a class that evaluates the schedule itself."""

Hyperparameter: TypeAlias = Annotated[RealScalarLike | Schedule, "marked"]
"""A real number, or a schedule if the optimizer is inside [`eqopt.Scheduled`][]."""

# The constructor checks the bounds: see `eqopt._arguments.checks.check_fields`.
ZeroOrMore: TypeAlias = Annotated[Hyperparameter, Interval(0)]
r"""A [`eqopt.Hyperparameter`][] in $[0, \infty)$, such as `eps`."""

Positive: TypeAlias = Annotated[Hyperparameter, Interval(0, includes_low=False)]
r"""A [`eqopt.Hyperparameter`][] in $(0, \infty)$."""

Unit: TypeAlias = Annotated[Hyperparameter, Interval(0, 1, includes_high=False)]
"""A [`eqopt.Hyperparameter`][] in $[0, 1)$, such as `b1`."""

OpenUnit: TypeAlias = Annotated[
    Hyperparameter, Interval(0, 1, includes_low=False, includes_high=False)
]
ClosedUnit: TypeAlias = Annotated[Hyperparameter, Interval(0, 1)]
UpToOne: TypeAlias = Annotated[Hyperparameter, Interval(0, 1, includes_low=False)]

# Python numbers within bounds, in records without arrays.
PositiveNumber: TypeAlias = Annotated[
    float | int, Interval(0, includes_low=False, includes_high=False)
]
ZeroOrMoreNumber: TypeAlias = Annotated[float | int, Interval(0, includes_high=False)]
UnitNumber: TypeAlias = Annotated[float | int, Interval(0, 1, includes_high=False)]

# Integers within bounds: data, or part of what determines the compiled program.
Count: TypeAlias = Annotated[IntegerLike, AtLeast(1)]
CountOrZero: TypeAlias = Annotated[IntegerLike, AtLeast(0)]
Size: TypeAlias = Annotated[int, AtLeast(1)]
SizeOrZero: TypeAlias = Annotated[int, AtLeast(0)]
StaticSize: TypeAlias = Annotated[StaticInteger, AtLeast(1)]

# A seed, a typed key of `jax.random.key`, or the bits of `jax.random.PRNGKey`.
Key: TypeAlias = IntegerLike | PRNGKeyArray
