"""Takes the length of a step from another method, and the direction from this one."""

from typing import Any, Literal, TypeAlias

import jax.numpy as jnp

from ...._trees.precision import or_tiny
from ...._types import Scalar
from ....numerics._numerics import abs_sq, safe_norm, safe_sqrt


Graft: TypeAlias = Literal["adam", "rmsprop", "adagrad", "sgd"]


def initial_moment(graft: Graft | None, zeros: Any) -> Any:
    """The initial second moment of the method; `()` if it has none."""
    return () if graft in (None, "sgd") else abs_sq(zeros)


def step_of(
    graft: str | None,
    mean: Any,
    g: Any,
    nu: Any,
    b2: Scalar,
    eps: Scalar,
    correction: Scalar,
) -> tuple[Any, Any]:
    """The step of the method for a mean of the gradients, and its new second moment."""
    if graft in (None, "sgd"):
        return mean, nu
    is_sum = graft == "adagrad"
    nu = (1 if is_sum else b2) * nu + (1 if is_sum else 1 - b2) * abs_sq(g)
    nu_hat = nu / correction if graft == "adam" else nu
    return mean / (safe_sqrt(nu_hat) + or_tiny(eps)), nu


def as_long_as(step: Any, direction: Any) -> Any:
    """`direction` with the norm of `step`."""
    norm = safe_norm(direction, 0)
    return direction * (safe_norm(step, 0) / jnp.where(norm == 0, 1, norm))
