"""All facts about an optimizer that tests, benchmarks and pages use."""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import optax

from eqopt import AbstractTransformation

from ..laws.row import Row
from ..parity.case import COSINES, LINEARS, ByHand, Case, TorchCase


@dataclass(frozen=True, eq=False)
class Method:
    """An optimizer.

    What it is:

    - `subject`: its class.
    - `idea`: what it does, in one line of the table in the documentation.
    - `in_optax`: its name in Optax, such as `"contrib.adopt"`; empty if it has none.

    What the laws and parity tests use:

    - `laws`: rows for its building blocks, for itself and for its variants. They also
        have exemptions from laws, with reasons.
    - `cases`, `torch`: what gives the same trajectory in Optax and in `torch.optim`, by
        name. `same(...)` gives both the class and what has its name in Optax these
        arguments.
    - `by_hand`: what gives the same updates in NumPy, as in the paper, by name.

    What the benchmarks run:

    - `ours`, `theirs`: functions of the learning rate, with defaults for all other
        hyperparameters. By default, the class, and what has its name in Optax. If
        Optax's defaults differ, `theirs` sets eqopt's. A method that Optax lacks is
        compared with the most similar one there.
    - `nearest`: the name of that method, such as `"AdamW"`, for the table of the
        benchmarks.
    - `default_rate`: the learning rate that is usual for it, of its authors where they
        name one. The grids of `benchmarks/workloads` lie around it.
    - `rates`: learning rates for the problems in `benchmarks/training/problems.py`, as
        `python -m benchmarks.training --tune` finds them, by eqopt's loss alone.
        Empty if it is not for batches.
    - `ratio`: the target in `python -m benchmarks` for the time of a step, over Optax's.
        `None` for methods that do more work than what they are compared with.
    - `per_example`: whether it needs the gradient of each example.
    - `deviates`: why it does not follow Optax's trajectory, if it does not.
    """

    subject: type[AbstractTransformation]
    idea: str
    in_optax: str = ""
    laws: Sequence[Row] = ()
    cases: Mapping[str, Any] = field(default_factory=dict)
    torch: Mapping[str, TorchCase] = field(default_factory=dict)
    by_hand: Mapping[str, ByHand] = field(default_factory=dict)
    ours: Callable[[Any], Any] = None  # pyright: ignore[reportAssignmentType]
    theirs: Callable[[Any], Any] = None  # pyright: ignore[reportAssignmentType]
    nearest: str = ""
    default_rate: float = 1e-3
    rates: tuple[float, ...] = ()
    ratio: float | None = 1.2
    per_example: bool = False
    deviates: str = ""

    def __post_init__(self):
        in_optax = operator.attrgetter(self.in_optax)(optax) if self.in_optax else None
        cases = {
            name: case(self.subject, in_optax) if callable(case) else case
            for name, case in self.cases.items()
        }
        object.__setattr__(self, "cases", cases)
        if self.ours is None:
            object.__setattr__(self, "ours", self.subject)
        if self.theirs is None:
            if in_optax is None:
                raise ValueError(
                    f"{self.name}: if it is not in Optax, `theirs` must make what it is "
                    "to be compared with, and `deviates` say why."
                )
            object.__setattr__(self, "theirs", in_optax)
        if bool(self.nearest) == bool(self.in_optax):
            raise ValueError(
                f"{self.name}: `nearest` names what `theirs` makes if it is not in "
                "Optax, and is empty if it is."
            )

    @property
    def name(self) -> str:
        return self.subject.__name__

    @property
    def classes(self) -> set[type[AbstractTransformation]]:
        """Its own class, and the classes of its building blocks."""
        return {self.subject, *(row.subject for row in self.laws)}


def same(*arguments: Any, **named: Any) -> Callable[[Callable, Callable], Case]:
    """What makes a case from both constructors, which get the same arguments.

    Of `COSINES` and `LINEARS`, each library gets its own schedule. The other fields of a
    `Case`, such as `converts`, are passed by name.
    """
    fields = {name: named.pop(name) for name in Case._fields if name in named}

    def made(constructor, side):
        own = lambda x: x[side] if x is COSINES or x is LINEARS else x
        options = {name: own(x) for name, x in named.items()}
        return constructor(*map(own, arguments), **options)

    return lambda ours, theirs: Case(made(ours, 0), made(theirs, 1), **fields)
