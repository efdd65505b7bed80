"""Normalizes rows, or rows and columns, and scales updates to a given spectral norm."""

import math
from typing import Any, Literal, TypeAlias

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Inexact

from ...._core import equation
from ...._types import Scalar
from ....numerics._numerics import abs_sq, safe_norm


Matrix: TypeAlias = Inexact[Array, "m n"]
SpectralTarget: TypeAlias = Literal["unit", "unit_rms"]

# The spectral norm of an update with m outputs and n inputs.
TARGETS = {"unit": lambda m, n: 1.0, "unit_rms": lambda m, n: math.sqrt(m / n)}


def _of_mean_square_one(x: Any, axis: int, least: Any) -> Any:
    """Scales `x` to a root mean square of one along an axis. Zeros stay zero."""
    norms = safe_norm(x, 0, axis=axis, keepdims=True)
    # Zeros are not divided by `least`: derivatives of many iterations would overflow.
    divisors = jnp.where(norms == 0, 1, jnp.maximum(norms, least))
    return x * (math.sqrt(x.shape[axis]) / divisors)


@equation
def row_norm(g: Matrix, *, eps: Scalar) -> Inexact[Array, "m n"]:
    return _of_mean_square_one(g, 1, eps * math.sqrt(g.shape[1]))


class Sinkhorn(eqx.Module):
    """`steps`: how many times to normalize all rows and then all columns; static."""

    steps: int = eqx.field(static=True)

    def __call__(self, x: Any, eps: Any) -> Any:
        for _ in range(self.steps):
            x = _of_mean_square_one(x, 1, eps)
            x = _of_mean_square_one(x, 0, eps)
        return x


@equation
def sinkhorn(g: Matrix, *, iteration: Sinkhorn, eps: Scalar) -> Inexact[Array, "m n"]:
    return iteration(g, eps)


class SpectralNorm(eqx.Module):
    """Estimates the largest singular value by the power method.

    `steps`: the number of steps of the power method; static.
    """

    steps: int = eqx.field(static=True)

    def __call__(self, x: Any, start: Any) -> Any:
        """Returns the estimate, and the right singular vector as a row.

        `start` is replaced if it is orthogonal to all rows. This happens in the first
        step, and when different columns become zero.
        """
        longest = jnp.argmax(jnp.sum(abs_sq(x), 1))
        is_of_use = jnp.sum(abs_sq(start @ jnp.conj(x.T))) > 0
        v = jnp.where(is_of_use, start, x[longest][None])
        norm = jnp.zeros((), x.real.dtype)
        for _ in range(self.steps):
            v = _of_length_one(v @ jnp.conj(x.T)) @ x
            norm = safe_norm(v, 0)
            v = _of_length_one(v)
        return norm, v


def _of_length_one(x: Any) -> Any:
    norm = safe_norm(x, 0)
    return x / jnp.where(norm == 0, 1, norm)


@equation
def spectral_sinkhorn(
    g: Matrix,
    right: Inexact[Array, "1 n"],
    *,
    iteration: Sinkhorn,
    spectral_norm: SpectralNorm,
    eps: Scalar,
    spectral_target: str,
) -> tuple[Inexact[Array, "m n"], Inexact[Array, "1 n"]]:
    x = iteration(g, eps)
    norm, right = spectral_norm(x, right)
    target = TARGETS[spectral_target](*g.shape)
    return target / jnp.where(norm == 0, 1, norm) * x, right
