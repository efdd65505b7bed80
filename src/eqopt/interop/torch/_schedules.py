"""Schedules for factors that torch's optimizers compute from the number of steps."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ...numerics._numerics import bias_correction, safe_increment


@dataclasses.dataclass(frozen=True)
class Dampened:
    """A factor of all gradients except the first."""

    factor: float

    def __call__(self, count: Any) -> Array:
        return jnp.where(count == 0, 1.0, self.factor)


@dataclasses.dataclass(frozen=True)
class InversePower:
    r"""$a / (1 + r t)^c$ after $t$ steps."""

    start: float
    rate: float
    power: float = 1.0

    def __call__(self, count: Any) -> Array:
        with jax.numpy_dtype_promotion("standard"):
            return self.start / (1 + self.rate * count) ** self.power


@dataclasses.dataclass(frozen=True)
class RootOfCorrection:
    r"""$a\,(1 - \beta^{t+1})^{c/2}$ after $t$ steps, for $c = 1$ or $-1$."""

    decay: float
    factor: float = 1.0
    sign: int = 1

    def __call__(self, count: Any) -> Array:
        root = jnp.sqrt(bias_correction(self.decay, safe_increment(count)))
        return self.factor * root if self.sign > 0 else self.factor / root


@dataclasses.dataclass(frozen=True)
class RelativeRate:
    r"""$\min(\eta, 1 / \sqrt{t + 1})$ after $t$ steps, the learning rate of Adafactor."""

    most: float

    def __call__(self, count: Any) -> Array:
        with jax.numpy_dtype_promotion("standard"):
            return jnp.minimum(self.most, (count + 1.0) ** -0.5)
