"""A row of the table of schedules."""

from collections.abc import Callable
from dataclasses import dataclass

from eqopt import schedules


@dataclass
class Case:
    """A schedule, its reference, and the count after which nothing changes.

    `reference` is Optax's schedule, or a formula in Python. A schedule that does not
    settle continues to change after its horizon.
    """

    ours: schedules.AbstractSchedule
    reference: Callable
    horizon: int
    settles: bool = True

    @property
    def counts(self) -> list[int]:
        near = range(-2, 3)
        spread = range(0, self.horizon, max(1, self.horizon // 23))
        around = {mark + d for mark in (0, 5, 7, 20, self.horizon) for d in near}
        return sorted({*spread, *(x for x in around if x >= 0), self.horizon + 1000})
