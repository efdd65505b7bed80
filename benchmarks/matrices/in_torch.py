"""The same step in torch, for methods that a package implements like their authors."""

from collections.abc import Callable
from importlib.util import find_spec
from time import perf_counter
from typing import Any

import jax
import numpy as np

from .. import machine
from ..contestants import Optimizer, Pair
from ..harness import Timing, race
from ..measures import Stepper


def _soap(params: Any, rate: float, period: int) -> Any:
    from pytorch_optimizer import SOAP  # pyright: ignore[reportMissingImports]

    return SOAP(params, lr=rate, precondition_frequency=period)


IN_TORCH: dict[str, Callable[[Any, float, int], Any]] = {"SOAP": _soap}


def is_there(name: str) -> bool:
    """Whether this module has a torch counterpart of the optimizer with that name."""
    installed = (
        find_spec(module) is not None for module in ("torch", "pytorch_optimizer")
    )
    return name in IN_TORCH and all(installed)


def race_with_torch(
    name: str,
    optimizer: Optimizer,
    rate: float,
    period: int,
    rounds: int,
    params: list[jax.Array],
    grads: list[jax.Array],
) -> Pair[Timing]:
    """Measures a step in eqopt and in torch, in turns, on the same number of cores."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(machine.cores() or threads)
    calls = 1 + 2 * period
    stepper = Stepper.compile(optimizer, params, grads)

    def theirs() -> list[float]:
        tensors = [torch.nn.Parameter(torch.tensor(np.asarray(p))) for p in params]
        for p, g in zip(tensors, grads, strict=True):
            p.grad = torch.tensor(np.asarray(g))
        opt, seconds = IN_TORCH[name](tensors, rate, period), []
        for _ in range(calls):
            start = perf_counter()
            opt.step()
            seconds.append(perf_counter() - start)
        return seconds[1:]

    try:
        samples = Pair(lambda: stepper.run(calls)[1][1:], theirs)
        return race(samples, rounds, period)
    finally:
        torch.set_num_threads(threads)
