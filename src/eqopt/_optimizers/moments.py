"""Shared by Adam and its variants: two moments and their bias corrections."""

import dataclasses
from collections.abc import Callable
from typing import TypeVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Int

from .._core import Leafwise
from .._types import Leaf, Nonnegative, Updates
from ..numerics._numerics import bias_correction, safe_increment
from ..tree._like import real_full_like, wide_zeros_like


_State = TypeVar("_State", bound=eqx.Module)


# The decay of each bias correction.
_DECAYS = {
    "mu_correction": "b1",
    "g_correction": "b1",
    "m_correction": "b1",
    "m1_correction": "b1",
    "nu_correction": "b2",
    "v_correction": "b2",
    "n_correction": "b3",
}


class AbstractMomentsState(eqx.Module):
    """Two moments of the gradients, and the number of gradients."""

    count: Int[Array, ""]
    mu: Updates
    nu: Nonnegative


def init_moments(owner, cls: Callable[..., _State], params, nu=0, **more) -> _State:
    """The state of type `cls`, with a first moment of zero and a second moment of `nu`.

    They are stored in the dtypes given by `owner`.
    """
    return cls(
        count=jnp.zeros((), jnp.int32),
        mu=wide_zeros_like(params, owner.mu_dtype),
        nu=real_full_like(params, nu, owner.nu_dtype),
        **more,
    )


def counted(owner, equation, state, *, count=None, reads=None, **shared) -> Leafwise:
    """The equation of the next step, with that step counted in the state.

    The bias corrections that the equation names and `shared` does not have are computed
    for the new `count`, which callers may pass if they already have it. With Nesterov
    momentum, `mu_correction` is for one step later; without it, `g_correction` is `None`.
    """
    count = safe_increment(state.count) if count is None else count
    may_look_ahead = "g_correction" in equation.shared
    if may_look_ahead and not owner.nesterov:
        shared["g_correction"] = None
    for name in equation.shared:
        if name in _DECAYS and name not in shared:
            is_ahead = may_look_ahead and owner.nesterov and name == "mu_correction"
            t = safe_increment(count) if is_ahead else count
            shared[name] = bias_correction(getattr(owner, _DECAYS[name]), t)
    return Leafwise(
        equation, dataclasses.replace(state, count=count), shared, reads or {}
    )


def unbiased(mu, g, b1, mu_correction, g_correction) -> Leaf:
    """The first moment without its bias; one step ahead if there is a `g_correction`."""
    mu_hat = mu / mu_correction
    if g_correction is None:
        return mu_hat
    return b1 * mu_hat + (1 - b1) * g / g_correction
