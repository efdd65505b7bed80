"""The same step in torch, in the code of the authors of a method."""

from collections.abc import Callable
from importlib.util import find_spec
from time import perf_counter
from typing import Any, NamedTuple

import jax
import numpy as np

from .. import machine
from ..contestants import Optimizer, Pair
from ..harness import Timing, race
from ..measures import Stepper


def _soap(params: Any, rate: float, period: int) -> Any:
    import soap as theirs  # pyright: ignore[reportMissingImports]

    return theirs.SOAP(params, lr=rate, precondition_frequency=period)


def _shampoo(params: Any, rate: float, period: int) -> Any:
    import distributed_shampoo as theirs  # pyright: ignore[reportMissingImports]

    return theirs.DistributedShampoo(
        params,
        lr=rate,
        betas=(0.9, 0.999),
        precondition_frequency=period,
        grafting_config=theirs.AdamPreconditionerConfig(beta2=0.999, epsilon=1e-8),
    )


class InTorch(NamedTuple):
    """A module, and a function that creates the optimizer in it."""

    module: str
    create: Callable[[Any, float, int], Any]


# From https://github.com/nikhilvyas/SOAP and
# https://github.com/facebookresearch/optimizers.
IN_TORCH = {
    "SOAP": InTorch("soap", _soap),
    "Shampoo": InTorch("distributed_shampoo", _shampoo),
}


def is_there(name: str) -> bool:
    """Whether there is a torch counterpart of this optimizer, and it is installed."""
    if name not in IN_TORCH:
        return False
    modules = "torch", IN_TORCH[name].module
    return all(find_spec(module) is not None for module in modules)


def race_with_torch(
    name: str,
    optimizer: Optimizer,
    rate: float,
    period: int,
    rounds: int,
    params: list[jax.Array],
    grads: list[jax.Array],
) -> Pair[Timing]:
    """Measures a step in eqopt and in torch, in turns, on the same number of cores.

    The first period is not measured, because Shampoo starts at its end.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(machine.cores() or threads)
    start, calls = 1 + period, 1 + 3 * period
    stepper = Stepper.compile(optimizer, params, grads)

    def theirs() -> list[float]:
        tensors = [torch.nn.Parameter(torch.tensor(np.asarray(p))) for p in params]
        for p, g in zip(tensors, grads, strict=True):
            p.grad = torch.tensor(np.asarray(g))
        opt, seconds = IN_TORCH[name].create(tensors, rate, period), []
        for _ in range(calls):
            now = perf_counter()
            opt.step()
            seconds.append(perf_counter() - now)
        return seconds[start:]

    try:
        samples = Pair(lambda: stepper.run(calls)[1][start:], theirs)
        return race(samples, rounds, period)
    finally:
        torch.set_num_threads(threads)
