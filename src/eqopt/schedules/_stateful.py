"""Schedules that depend on more than the number of steps."""

import abc
from typing import Any, ClassVar

from .._arguments.construction import Module
from .._types import State


class AbstractStatefulSchedule(Module):
    """A hyperparameter as a function of past events, such as losses.

    Pass it as a hyperparameter, and wrap the whole optimizer in [`eqopt.Scheduled`][],
    which keeps the schedule's state.

    !!! example

        ```python
        class HalvedWhenWorse(eqopt.schedules.AbstractStatefulSchedule):
            init_value: float

            def init(self):
                return jnp.asarray(self.init_value), jnp.asarray(jnp.inf)

            def update(self, state, *, value, **extra):
                rate, best = state
                return jnp.where(value > best, rate / 2, rate), jnp.minimum(value, best)

            def __call__(self, state, **extra):
                return state[0]


        opt = eqopt.Scheduled(eqopt.Adam(HalvedWhenWorse(1e-3)))
        model, state = opt.step(grads, state, model, value=loss)
        ```
    """

    is_schedule: ClassVar[bool] = True  # what the floors below know it by
    needs_scheduled: ClassVar[bool] = True  # no other class keeps its state

    @abc.abstractmethod
    def init(self) -> State:
        """The state before the first step."""

    @abc.abstractmethod
    def update(self, state: State, **extra: Any) -> State:
        """The state after one more step.

        **Arguments:**

        - `state`: the state before this step.
        - `extra`: the extra arguments of the optimizer's `update`, by name.
        """

    @abc.abstractmethod
    def __call__(self, state: State, **extra: Any) -> Any:
        """The value for the next step, a 0-d array.

        **Arguments:**

        - `state`: the state before that step.
        - `extra`: the extra arguments of the optimizer's `update`, by name. In the
            optimizer's `init`, there are none.
        """
