"""A link between machines, a large model, and the hours until it is trained."""

import math
from typing import NamedTuple

from ..scaling.transformer import Shape
from .methods import REPLICAS
from .sent import Messages, shapes_of


# Steps in which the data goes once round a ring of n devices, or twice.
ROUNDS = {
    "all-reduce": lambda n: 2 * (n - 1),
    "all-gather": lambda n: n - 1,
    "all-to-all": lambda n: n - 1,
}


class Link(NamedTuple):
    """From each machine to the next one in the ring, in both directions at once.

    **Attributes:**

    - `latency`: seconds until the first byte arrives.
    - `gigabits`: how many of them are sent in a second.
    """

    latency: float
    gigabits: float

    def seconds(self, messages: Messages) -> float:
        """The time that the messages take in a step, on average."""
        rounds = sum(ROUNDS[one.kind](one.group) for one in messages.sent)
        speed = 1e9 / 8 * self.gigabits
        return self.latency * rounds / messages.steps + messages.per_step / speed


class Large(NamedTuple):
    """A model that is too large to be trained here, on `REPLICAS` machines."""

    name: str
    shape: Shape
    rank: int = 256

    @property
    def size(self) -> int:
        """The number of parameters."""
        return sum(map(math.prod, shapes_of(self.shape)))


SEVEN = Large("7B", Shape(32000, 4096, 32, 11008, layers=32, length=4096))
SEVENTY = Large("70B", Shape(32000, 8192, 64, 24576, layers=80, length=4096), 512)

LATENCY = 0.01  # seconds
ACCELERATORS = 8  # in each machine
SPEED = 4e14  # FLOP per second of one accelerator, in training
TOKENS_PER_PARAMETER, TOKENS_PER_STEP = 20, 2**22


def compute_seconds(large: Large) -> float:
    """Of a step, with 6 FLOP for each parameter and token."""
    flops = 6 * large.size * TOKENS_PER_STEP
    return flops / (REPLICAS * ACCELERATORS * SPEED)


def steps_of(large: Large) -> float:
    """The steps of data parallelism."""
    return TOKENS_PER_PARAMETER * large.size / TOKENS_PER_STEP


def hours(large: Large, more_steps: float, messages: Messages, link: Link) -> float:
    """Until the loss, for `more_steps` times as many steps as data parallelism needs.

    Nothing is computed while messages are on their way.
    """
    step = compute_seconds(large) + link.seconds(messages)
    return steps_of(large) * more_steps * step / 3600
