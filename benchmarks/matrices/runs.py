"""The optimizers; measures the state, and the time and the memory of a step."""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax
from tests.methods import BY_FAMILY

import eqopt

from ..contestants import Pair
from ..harness import Timing
from ..measures import Settings, square_leaves, stepping
from .in_torch import is_there, race_with_torch


# The number of steps from one expensive refresh to the next. Times are means over them.
PERIOD = 10
_GAPS = "precondition_frequency", "update_proj_gap"
RATE = 1e-3


def _with_period(opt: Any) -> Any:
    """`opt`, which refreshes bases and subspaces every `PERIOD` steps if it has any."""
    names = {field.name for field in dataclasses.fields(opt)}.intersection(_GAPS)
    return dataclasses.replace(opt, **dict.fromkeys(names, PERIOD))


# The optimizers by name. AdamW, compared with itself, shows the noise in the ratios.
OPTIMIZERS: dict[str, Any] = {
    "AdamW": eqopt.AdamW(RATE),
    **{m.name: _with_period(m.ours(RATE)) for m in BY_FAMILY["matrix"]},
    "PSGDKron, each step": eqopt.PSGDKron(RATE),
    "SOAP, staggered": eqopt.SOAP(RATE, precondition_frequency=PERIOD, stagger=True),
    "SOAP, one-sided": eqopt.SOAP(RATE, precondition_frequency=PERIOD, one_sided=True),
}


class Matrices(NamedTuple):
    """Square matrices of equal size."""

    number: int
    side: int

    def __str__(self) -> str:
        return f"{self.number} of {self.side} x {self.side}"

    def draw(self, settings: Settings, seed: int) -> list[jax.Array]:
        return square_leaves(settings, seed, self.number, self.side)


# The hidden layers of a small transformer, and of a larger one.
SIZES = Matrices(48, 256), Matrices(12, 1024)


class Cost(NamedTuple):
    """The cost of a step.

    **Attributes:**

    - `state`: the numbers in the state, as a multiple of the parameters.
    - `seconds`: the seconds of a step of the optimizer, and of a step of AdamW in the
        same run.
    - `temporary`: the bytes that the compiled program takes in addition to its arguments
        and results, as a multiple of the bytes of the parameters.
    - `beside_torch`: the seconds of a step, and of a step of the same optimizer in torch
        in the same run. `None` if torch does not have it, or is not installed.
    - `lowest`, `highest`: the lowest and the highest ratio to AdamW, if several processes
        measured this.
    """

    state: float
    seconds: Pair[Timing]
    temporary: float
    beside_torch: Pair[Timing] | None = None
    lowest: float | None = None
    highest: float | None = None

    @property
    def ratio(self) -> float:
        return self.seconds.eqopt.best / self.seconds.other.best


def cost(name: str, matrices: Matrices, rounds: int) -> Cost:
    """The cost of an optimizer. Each round has two periods, after a first step."""
    settings = Settings(size=0, leaves=0, rounds=rounds)
    pair = Pair(OPTIMIZERS[name], OPTIMIZERS["AdamW"])
    measure = stepping(pair, PERIOD, matrices.draw, compares=False)
    found = measure(settings)
    assert found.temporary is not None and found.params is not None
    params = jax.eval_shape(lambda: matrices.draw(settings, 0))
    state = eqx.filter_eval_shape(OPTIMIZERS[name].init, params)
    numbers = sum(x.size for x in jax.tree.leaves(eqx.filter(state, _has_size)))
    beside_torch = None
    if is_there(name):
        start, grads = (matrices.draw(settings, seed) for seed in (0, 1))
        beside_torch = race_with_torch(
            name, OPTIMIZERS[name], RATE, PERIOD, rounds, start, grads
        )
    return Cost(
        numbers / sum(x.size for x in params),
        found.seconds,
        found.temporary.eqopt / found.params,
        beside_torch,
    )


def _has_size(x: Any) -> bool:
    return hasattr(x, "size")
