"""What Adam and its kin have in common: two moments, and how biased they are."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Inexact, Int

from ..._checks import check_range
from ..._types import Params
from ...numerics import bias_correction, safe_increment
from ...tree import zeros_like
from ...tree._like import real_full_like


_State = TypeVar("_State", bound=eqx.Module)


def init_moments(
    cls: Callable[..., _State],
    params: Params,
    mu_dtype: DTypeLike | None,
    nu_dtype: DTypeLike | None,
    nu: Any = 0,
    **more: Any,
) -> _State:
    """The state of type `cls`, with a first moment of zero and a second one of `nu`."""
    return cls(
        count=jnp.zeros((), jnp.int32),
        mu=zeros_like(params, mu_dtype),
        nu=real_full_like(params, nu, nu_dtype),
        **more,
    )


def check_moments(owner: object) -> None:
    """Raises unless the decays and the epsilons of `owner` are in their ranges."""
    for name in ("b1", "b2"):
        check_range(owner, name, 0, 1)
    for name in ("eps", "eps_root"):
        if hasattr(owner, name):
            check_range(owner, name, 0)


def corrected(owner: Any, count: Int[Array, ""]) -> Mapping[str, Any]:
    """What equations share in the step number `count`, by name.

    These are all fields of `owner`, and the bias corrections; an equation takes those
    that it names.
    """
    nesterov = getattr(owner, "nesterov", False)
    mu_count = safe_increment(count) if nesterov else count
    return {
        **vars(owner),
        "mu_correction": bias_correction(owner.b1, mu_count),
        "g_correction": bias_correction(owner.b1, count),
        "nu_correction": bias_correction(owner.b2, count),
    }


def unbiased(
    mu: Inexact[Array, "*leaf"],
    g: Inexact[Array, "*leaf"],
    b1: Float[Array, ""],
    mu_correction: Float[Array, ""],
    g_correction: Float[Array, ""],
    nesterov: bool,
) -> Inexact[Array, "*leaf"]:
    """The first moment without its bias, one step ahead if `nesterov`."""
    mu_hat = mu / mu_correction
    if nesterov:
        # One quotient of scalars: XLA on a CPU stores that of an array for two readers.
        mu_hat = b1 * mu_hat + ((1 - b1) / g_correction) * g
    return mu_hat
