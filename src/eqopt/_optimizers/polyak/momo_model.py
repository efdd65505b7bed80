"""Shared by MoMo and MoMoAdam: a model of the loss, and the step size from it."""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._arguments.checks import check_range, check_scalar
from ..._arguments.extra import required_params, required_value
from ..._core.equation import Equation, equation
from ..._core.pipeline import Leafwise
from ..._core.reductions import dot, sum_over_leaves
from ..._core.transformation import AbstractLeafwise
from ..._cpu.order import after, materialized
from ..._transforms.scale import scale
from ..._transforms.weight_decay import is_off
from ..._trees.leaves import parameters
from ..._trees.masks import mask_out
from ..._trees.precision import compute_dtype
from ..._types import (
    Hyperparameter,
    Leaf,
    Mask,
    Measured,
    Params,
    RealLeaf,
    Scalar,
    ScalarOrSchedule,
    State,
    Updates,
)
from ...numerics import abs_sq, safe_increment
from ..scalars import value_at
from .polyak import capped_ratio


@equation
def momentum(g: Leaf, exp_avg: Leaf, *, b1: Scalar) -> tuple[Leaf, Leaf]:
    exp_avg = b1 * exp_avg + (1 - b1) * g
    return exp_avg, exp_avg


@equation
def preconditioned_momentum(
    g: Leaf,
    exp_avg: Leaf,
    exp_avg_sq: RealLeaf,
    *,
    b1: Scalar,
    b2: Scalar,
    eps: Scalar,
    correction: Scalar,
) -> tuple[Leaf, Leaf, RealLeaf]:
    exp_avg = b1 * exp_avg + (1 - b1) * g
    exp_avg_sq = b2 * exp_avg_sq + (1 - b2) * abs_sq(g)
    # The bound keeps the derivative of the root finite and the denominator positive. On
    # a CPU, there is a bound for each leaf, because XLA expands values that two sums
    # share to an array.
    tiny = jnp.asarray(jnp.finfo(exp_avg_sq.dtype).tiny, exp_avg_sq.dtype)
    nu_hat = jnp.maximum(exp_avg_sq / correction, after(correction, tiny))
    return exp_avg / (jnp.sqrt(nu_hat) + eps), exp_avg, exp_avg_sq


# The products for the step size, from the equations of the step itself. If both are
# compiled together, the new averages are computed once, in place.


@equation
def momentum_products(
    g: Leaf, exp_avg: Leaf, p: Leaf, *, b1: Scalar
) -> tuple[Scalar, ...]:
    return _products(g, p, *momentum(g, exp_avg, b1=b1))


@equation
def preconditioned_momentum_products(
    g: Leaf,
    exp_avg: Leaf,
    exp_avg_sq: RealLeaf,
    p: Leaf,
    *,
    b1: Scalar,
    b2: Scalar,
    eps: Scalar,
    correction: Scalar,
) -> tuple[Scalar, ...]:
    # Otherwise, XLA on a CPU stores the direction of this pass, a whole tree, for the
    # next pass.
    correction = materialized(correction)
    eps = after(correction, eps)
    moments = preconditioned_momentum(
        g, exp_avg, exp_avg_sq, b1=b1, b2=b2, eps=eps, correction=correction
    )
    return _products(g, p, *moments[:2])


def _products(g, p, direction, exp_avg):
    return dot(g, p), dot(exp_avg, p), dot(exp_avg, direction)


@equation
def shrink(g: Leaf, p: Leaf, *, decay: Scalar) -> Leaf:
    # p + u = (p + g) / (1 + decay), without the cancellation.
    return (g - decay * p) / (1 + decay)


class Momentum(NamedTuple):
    """The momentum of one step, and the values that it needs from the state."""

    direction: Equation
    products: Equation
    averages: dict[str, Updates]
    shared: dict[str, Any]
    fill: Any  # the sum of the weights in the averages
    in_turn: str | None = None  # of `shared`: see `sum_over_leaves`


class AbstractMoMo(AbstractLeafwise):
    """The step size, the lower bound and the decay, for any momentum.

    Differs from Optax in: with weight decay, both the step and the parameters are
    divided by 1 + decay, as in the paper and its code. (In Optax, only the parameters
    are.)
    """

    learning_rate: eqx.AbstractVar[ScalarOrSchedule]
    lower_bound: eqx.AbstractVar[Hyperparameter]
    weight_decay: eqx.AbstractVar[ScalarOrSchedule]
    adapt_lower_bound: eqx.AbstractVar[bool]
    mask: eqx.AbstractVar[Mask | None]

    @abc.abstractmethod
    def _momentum(self, state: State) -> Momentum: ...

    def __check_init__(self):
        for name in ("learning_rate", "weight_decay"):
            if not callable(getattr(self, name)):
                check_range(self, name, 0)
        check_scalar(self, "lower_bound")

    def leafwise(
        self, state: State, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        params = required_params(type(self).__name__, params)
        value = required_value(self, extra)
        momentum = self._momentum(state)
        alpha, weight_decay = (
            value_at(self, name, state.count, state.barf)
            for name in ("learning_rate", "weight_decay")
        )
        decay = alpha * weight_decay

        def measure(updates: Updates) -> Measured:
            sums = self._sums(updates, params, momentum, decay)
            new = self._measured(state, momentum, value, alpha, *sums)
            return {"step_size": -new.learning_rate}, new

        shrunk = Leafwise(shrink, shared={"decay": decay}, mask=self.mask)
        return Leafwise(
            momentum.direction,
            shared=momentum.shared,
            measure=measure,
            then=Leafwise(scale, then=None if is_off(self.weight_decay) else shrunk),
        )

    def _measured(
        self,
        state: State,
        momentum: Momentum,
        value: Any,
        alpha: Scalar,
        sums: "Products",
        shrunk: "Products",
    ) -> State:
        """The state with its new scalars, which include the step size."""
        dtype = state.barf.dtype
        # Copied: the bound goes into the state, which must not share a buffer with
        # `self`.
        value, b1, rho, lower_bound = (
            jnp.array(x, dtype)
            for x in (value, momentum.shared["b1"], momentum.fill, self.lower_bound)
        )
        barf = b1 * state.barf + (1 - b1) * value
        gamma = b1 * state.gamma + (1 - b1) * sums.g_p
        # The value of the model at the point after only the decay, and its descent from
        # there.
        height, slope = barf - gamma + shrunk.d_p, shrunk.d_d
        lb = lower_bound
        if self.adapt_lower_bound:
            reset = jnp.maximum(height / (2 * rho), lower_bound)
            lb = jnp.where(height < rho * state.lb, reset, state.lb)
        gap = jnp.maximum(height - rho * lb, 0)
        tau = capped_ratio(gap, slope, alpha / rho)
        if self.adapt_lower_bound:
            # Zero times infinity would be NaN.
            descent = jnp.where(jnp.isinf(sums.d_d), gap, tau * sums.d_d)
            lb = (barf - gamma + sums.d_p - descent / 2) / rho
            lb = jnp.maximum(lb, lower_bound)
        return type(state)(
            **momentum.averages,
            barf=barf,
            gamma=gamma,
            lb=lb,
            learning_rate=tau,
            count=safe_increment(state.count),
        )

    def _sums(
        self, updates: Updates, params: Params, momentum: Momentum, decay: Scalar
    ) -> tuple["Products", ...]:
        """The products over all leaves, without and with the shrinking by the decay.

        With a mask, the model is minimised where some leaves shrink and some do not.
        """
        reads = {**momentum.averages, "p": params}
        parts = [updates]
        if self.mask is not None:
            parts = [mask_out(updates, self.mask, params, k) for k in (True, False)]
        sums, shared, in_turn = [], momentum.shared, momentum.in_turn
        for x in parts:
            products = sum_over_leaves(
                momentum.products, x, reads, shared, apart=False, in_turn=in_turn
            )
            sums.append(jnp.stack(products))
            if in_turn is not None:
                shared = {**shared, in_turn: after(products[0], shared[in_turn])}
        sums = [x.astype(decay.dtype) for x in sums]
        shrunk = [sums[0] / (1 + decay), *sums[1:]]
        return tuple(Products(*jnp.sum(jnp.stack(x), 0)) for x in (sums, shrunk))


class Products(NamedTuple):
    g_p: Float[Array, ""]
    d_p: Float[Array, ""]
    d_d: Float[Array, ""]


def initial_scalars(params: Params, lower_bound: Any) -> dict[str, Array]:
    """The fields of both states that are not averages over leaves."""
    dtype = compute_dtype(*jax.tree.leaves(parameters(params)))
    barf, gamma, learning_rate = (jnp.zeros((), dtype) for _ in range(3))
    return {
        "barf": barf,
        "gamma": gamma,
        "lb": jnp.array(lower_bound, dtype),
        "learning_rate": learning_rate,
        "count": jnp.zeros((), jnp.int32),
    }
