"""Shared by MoMo and MoMoAdam: a model of the loss, and the step size from it."""

import abc
import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._arguments.extra import check_number, required_params
from ..._core import (
    AbstractTransformation,
    Equation,
    dot,
    equation,
    leafwise,
    rounded_like,
    sum_over_leaves,
    widened,
)
from ..._transforms.scale import recorded, scale
from ..._transforms.weight_decay import is_off
from ..._trees.leaves import parameters
from ..._trees.precision import compute_dtype
from ..._trees.states import check_state
from ..._types import (
    Hyperparameter,
    Leaf,
    Mask,
    Params,
    RealScalarLike,
    Scalar,
    ScalarOrSchedule,
    State,
    Updates,
)
from ...numerics._numerics import safe_increment
from ..own_decay import Decays, which_decay
from ..scalars import value_at
from .polyak import capped_ratio


class Products(Equation):
    """The products for the step size, from the equation of the direction.

    The first three are for leaves that decay, the others for leaves that do not.
    """

    def __init__(self, direction: Equation):
        self.name, self.shared = direction.name, direction.shared
        self.leaves = ("p", "decays", *direction.leaves)
        self._direction = direction

    def __call__(
        self, g: Leaf, p: Leaf, decays: Decays | None, *averages: Leaf, **shared: Scalar
    ) -> tuple[Scalar, ...]:
        d, exp_avg, *_ = self._direction(g, *averages, **shared)
        products = dot(g, p), dot(exp_avg, p), dot(exp_avg, d)
        zeros = tuple(map(jnp.zeros_like, products))
        return (*zeros, *products) if decays is None else (*products, *zeros)


class Momentum(NamedTuple):
    """The momentum of one step.

    **Attributes:**

    - `direction`: the equation of the direction and of the averages.
    - `products`: its `Products`.
    - `averages`: the old averages, by name.
    - `shared`: values for the equation, including `b1`.
    - `rho`: the sum of the weights in the averages.
    """

    direction: Equation
    products: Products
    averages: dict[str, Updates]
    shared: dict[str, Any]
    rho: Any


@equation(elementwise=True)
def shrink(g, p, *, decay):
    # p + u = (p + g) / (1 + decay), without the cancellation.
    return (g - decay * p) / (1 + decay)


class AbstractMoMo(AbstractTransformation):
    """The step size, the lower bound and the decay, for any momentum.

    Differs from Optax in: with weight decay, both the step and the parameters are
    divided by 1 + decay, as in the paper and its code. (In Optax, only the parameters
    are.)
    """

    _loads = "nothing"
    _descends = True

    learning_rate: eqx.AbstractVar[ScalarOrSchedule]
    lower_bound: eqx.AbstractVar[Hyperparameter]
    weight_decay: eqx.AbstractVar[ScalarOrSchedule]
    adapt_lower_bound: eqx.AbstractVar[bool]
    mask: eqx.AbstractVar[Mask | None]

    @abc.abstractmethod
    def _momentum(self, state: State) -> Momentum: ...

    def update(
        self,
        updates: Updates,
        state: State,
        params: Params | None = None,
        *,
        value: RealScalarLike,
        **extra: Any,
    ) -> tuple[Updates, State]:
        check_state(self, state)
        params = required_params(self, params)
        check_number(self, "value", value)
        now = lambda name: value_at(self, name, state.count, state.barf)
        decay = now("learning_rate") * now("weight_decay")
        direction, products, averages, shared, rho = self._momentum(state)
        reads = {"p": params, "decays": which_decay(self.mask, params), **averages}
        sums = sum_over_leaves(products, updates, reads, shared, in_own_pass=True)
        sums = jnp.stack(sums).astype(decay.dtype)
        numbers = value, shared["b1"], rho, decay
        new = self._model(state, *numbers, sums[:3], sums[3:])
        d, *moved = leafwise(direction, widened(updates), *averages.values(), **shared)
        u = leafwise(scale, d, step_size=-new.learning_rate)
        if not is_off(self.weight_decay):
            u = leafwise(shrink, u, reads={"p": params}, mask=self.mask, decay=decay)
        new = dataclasses.replace(new, **dict(zip(averages, moved, strict=True)))
        return rounded_like(u, updates), new

    def _model(
        self,
        state: State,
        value: Any,
        b1: Any,
        rho: Any,
        decay: Scalar,
        decaying: Float[Array, "3"],
        others: Float[Array, "3"],
    ) -> State:
        """The state with the model of the loss and the step size.

        `decaying` and `others` are the products for leaves with and without decay.
        """
        # New arrays, because the state must not share a buffer with `self`.
        value, b1, rho, lower_bound = (
            jnp.array(x, decay.dtype) for x in (value, b1, rho, self.lower_bound)
        )
        alpha = value_at(self, "learning_rate", state.count, state.barf)
        g_p, d_p, d_d = decaying + others
        barf = b1 * state.barf + (1 - b1) * value
        gamma = b1 * state.gamma + (1 - b1) * g_p
        # The decay alone leads to a point where the model has the value `height`.
        _, d_shrunk, slope = decaying / (1 + decay) + others
        height = barf - gamma + d_shrunk
        if self.adapt_lower_bound:
            reset = jnp.maximum(height / (2 * rho), lower_bound)
            lb = jnp.where(height < rho * state.lb, reset, state.lb)
        else:
            lb = recorded(lower_bound, state.lb)
        gap = jnp.maximum(height - rho * lb, 0)
        tau = capped_ratio(gap, slope, alpha / rho)
        if self.adapt_lower_bound:
            # Zero times infinity would be NaN.
            descent = jnp.where(jnp.isinf(d_d), gap, tau * d_d)
            lb = jnp.maximum((barf - gamma + d_p - descent / 2) / rho, lower_bound)
        return dataclasses.replace(
            state,
            barf=barf,
            gamma=gamma,
            lb=lb,
            learning_rate=recorded(tau, state.learning_rate),
            count=safe_increment(state.count),
        )


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
