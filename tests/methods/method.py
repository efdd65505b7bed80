"""All facts about an optimizer that tests, benchmarks and pages use."""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import optax

from eqopt import AbstractTransformation

from ..laws.row import Row
from ..parity.case import ByHand, Case, both


# What methods that Optax lacks are compared with: the class, and its name in Optax.
IN_OPTAX = {
    "Adafactor": "adafactor",
    "Adam": "adam",
    "AdamW": "adamw",
    "GaLore": "contrib.galore",
    "Muon": "contrib.muon",
    "SGD": "sgd",
    "ScheduleFreeAdamW": "contrib.schedule_free_adamw",
}


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
    - `cases`: what gives the same trajectory in Optax, by name. `same(...)` gives both
        the class and what has its name in Optax (or `theirs`) these arguments.
    - `by_hand`: what gives the same updates in NumPy, as in the paper, by name.

    What the benchmarks run:

    - `ours`, `theirs`: functions of the learning rate, with defaults for all other
        hyperparameters. By default, the class, and what has its name in Optax. If
        Optax's defaults differ, `theirs` sets eqopt's. A method that Optax lacks is
        compared with the most similar one there.
    - `nearest`: the name of that method, such as `"AdamW"`, for the table of the
        benchmarks. If it is in `IN_OPTAX`, it is the default of `theirs`, and
        `deviates` says so.
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
        if bool(self.nearest) == bool(self.in_optax):
            raise ValueError(
                f"{self.name}: `nearest` names what `theirs` makes if it is not in "
                "Optax, and is empty if it is."
            )
        named = self.in_optax or IN_OPTAX.get(self.nearest)
        in_optax = operator.attrgetter(named)(optax) if named else self.theirs
        if in_optax is None:
            raise ValueError(f"{self.name}: `theirs` must make its {self.nearest}.")
        cases = {
            name: case(self.subject, in_optax) if callable(case) else case
            for name, case in self.cases.items()
        }
        has_other_nearest = self.nearest in IN_OPTAX
        beside = f"Optax has no {self.name}; beside it is its {self.nearest}"
        defaults = {
            "ours": self.ours or self.subject,
            "theirs": self.theirs or in_optax,
            "deviates": self.deviates or (beside if has_other_nearest else ""),
            "cases": cases,
        }
        for name, value in defaults.items():
            object.__setattr__(self, name, value)

    @property
    def name(self) -> str:
        return self.subject.__name__

    @property
    def classes(self) -> set[type[AbstractTransformation]]:
        """Its own class, and the classes of its building blocks."""
        return {self.subject, *(row.subject for row in self.laws)}


def same(*arguments: Any, **named: Any) -> Callable[[Callable, Callable], Case]:
    """What makes a case from both constructors, which get the same arguments.

    See `parity.case.both` for what they may be.
    """
    return lambda ours, theirs: both(ours, theirs, *arguments, **named)
