"""Moving an average towards the parameters, and putting it in their place."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Inexact

from .._equations import equation
from .._leaves import parameters
from .._pipeline import Leafwise, Pipeline
from .._types import Params, Updates


@equation
def follow(
    g: Inexact[Array, "*leaf"],
    average: Inexact[Array, "*leaf"],
    *,
    weight: Float[Array, ""],
) -> tuple[Inexact[Array, "*leaf"], Inexact[Array, "*leaf"]]:
    """Here `g` is not an update, but the parameter itself."""
    # The first value is the whole average, without the rounding of a difference.
    moved = average + weight * (g - average)
    return g, jnp.where(weight == 1, g, moved)


@equation
def follow_updated(
    g: Inexact[Array, "*leaf"],
    average: Inexact[Array, "*leaf"],
    p: Inexact[Array, "*leaf"],
    *,
    weight: Float[Array, ""],
) -> tuple[Inexact[Array, "*leaf"], Inexact[Array, "*leaf"]]:
    return g, follow(p + g, average, weight=weight)[1]


@equation
def choose(
    g: Inexact[Array, "*leaf"],
    average: Inexact[Array, "*leaf"],
    *,
    weight_sum: Float[Array, ""],
) -> Inexact[Array, "*leaf"]:
    return jnp.where(weight_sum == 0, g, average)


def followed(
    params: Params,
    updates: Updates | None,
    state: Any,
    shared: Mapping[str, Any],
) -> Any:
    """`state` with the average moved towards the parameters, updated if not yet so."""
    if updates is None:
        pipeline = Pipeline(parameters(params), None, {})
        leafwise = Leafwise(follow, state, shared)
    else:
        pipeline = Pipeline(updates, params, {})
        leafwise = Leafwise(follow_updated, state, shared)
    promise = pipeline.push(type(state).__name__.removesuffix("State"), leafwise)
    pipeline.flush()
    return promise()


def averaged_or(params: Params, average: Params, weight_sum: Array) -> Params:
    """`params` with the average in their place, unless that has no weight yet."""
    pipeline = Pipeline(parameters(params), None, {})
    leafwise = Leafwise(
        choose, shared={"weight_sum": weight_sum}, reads={"average": average}
    )
    pipeline.push("eval_params", leafwise)
    return eqx.combine(pipeline.flush(), params)
