"""The methods: how replicas average, and what they say to each other."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

import eqopt


AXIS, REPLICAS = "workers", 8
SYNC_EVERY, FRAGMENTS, DELAY = 20, 4, 1
OUTER_RATE, OUTER_MOMENTUM = 0.7, 0.5
BLOCK = 256

DATA_PARALLEL, ZERO1, POWER_SGD = "data parallel", "ZeRO-1", "PowerSGD"
DILOCO, STREAMING = "DiLoCo", "streaming DiLoCo in 8 bits"


class Method(NamedTuple):
    """A method that is trained.

    **Attributes:**

    - `wrap`: a function of the optimizer of one device, and of the rank of PowerSGD.
    - `params`, `state`: prefixes that are 0 where replicas have their own values, and
        `None` where all have the same.
    - `averages`: whether gradients are averaged before the step.
    """

    wrap: Callable[[Any, int], Any]
    params: int | None
    state: Any
    averages: bool = False

    def step(self, opt: Any, grads: Any, state: Any, params: Any) -> tuple[Any, Any]:
        """The step of one replica, with its gradients, along an axis named `AXIS`."""
        if self.averages:
            grads = jax.lax.pmean(grads, AXIS)
        return opt.step(grads, state, params)


def _power_sgd(inner: Any, rank: int) -> Any:
    return eqopt.CompressedMean(inner, AXIS, eqopt.compression.PowerSGD(rank))


def _diloco(inner: Any, **options: Any) -> Any:
    outer = eqopt.SGD(OUTER_RATE, OUTER_MOMENTUM, nesterov=True)
    return eqopt.DiLoCo(inner, AXIS, SYNC_EVERY, outer, **options)


def _streaming(inner: Any, rank: int) -> Any:
    return _diloco(
        inner,
        fragments=FRAGMENTS,
        delay=DELAY,
        compressor=eqopt.compression.Int8Blocks(BLOCK),
    )


_OF_DILOCO = eqopt.DiLoCoState.prefix(0, None)
# ZeRO-1 is not among them: it computes what data parallelism computes.
TRAINED = {
    DATA_PARALLEL: Method(lambda inner, rank: inner, None, None, averages=True),
    POWER_SGD: Method(_power_sgd, None, eqopt.CompressedMeanState.prefix(0, None)),
    DILOCO: Method(lambda inner, rank: _diloco(inner), 0, _OF_DILOCO),
    STREAMING: Method(_streaming, 0, _OF_DILOCO),
}
NAMES = (DATA_PARALLEL, ZERO1, POWER_SGD, DILOCO, STREAMING)
