"""Inner steps, some of which are followed by a step of an outer optimizer."""

import abc
from typing import Any

from ..._arguments.extra import required_params
from ..._core import AbstractWrapper, Call, equation
from ..._trees.states import check_state
from ..._types import Model, State
from .beside import check_kept, put_beside


@equation(elementwise=True)
def take_slow(p, slow):
    return slow


class AbstractOuter(AbstractWrapper):
    """A wrapper whose state has `inner_state`, and in `slow` the outer parameters."""

    _moves_params = True

    def eval_params(self, state: State, params: Model) -> Model:
        """The model with the parameters after the last outer step.

        **Arguments:**

        - `state`, `params`: as returned by the last `step`. The evaluation parameters
            of `inner` are ignored: the outermost average counts.
        """
        check_state(self, state)
        return put_beside(state, params, take_slow, "slow")

    def handle(self, call: Call, state: Any) -> tuple[Any, Any]:
        required_params(self, call.params)
        check_kept("slow", state.slow, call.updates)
        result, inner_state = call.run(self.inner, state.inner_state)
        return self._after_inner(call, result, inner_state, state)

    @abc.abstractmethod
    def _after_inner(
        self, call: Call, result: Any, inner_state: State, state: Any
    ) -> tuple[Any, Any]:
        """The result and the new state, from the result of the inner step."""
