"""Transformations that need all leaves before they can update one of them."""

import abc
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._arguments.extra import required_params
from .._core.pipeline import Leafwise, Pipeline, filled
from .._core.transformation import AbstractFused
from .._transforms.scale import at
from .._transforms.weight_decay import decay_weights, is_off
from .._trees.leaves import parameters
from .._trees.precision import compute_dtype
from .._trees.states import check_state
from .._types import Params, Scalar, State, Updates
from ..numerics import bias_correction, safe_increment, safe_sqrt
from .own_decay import decay_of, shared_decay


class AbstractMeasured(AbstractFused):
    """A transformation with a state that holds measurements over all leaves.

    (A `measure` of a `Leafwise` passes numbers to the equation, but not to the state.)
    """

    @abc.abstractmethod
    def stages(
        self, updates: Updates, state: State, params: Params, **extra: Any
    ) -> Sequence[Leafwise]:
        """The equations of this step; the first of them has the new state."""

    def _feed(self, pipeline: Pipeline, state: State) -> Callable[[], State]:
        check_state(self, state)
        name, params = type(self).__name__, pipeline.params
        required_params(name, params)
        stages = self.stages(pipeline.flush(), state, params, **pipeline.extra)
        promise, *_ = [pipeline.push(name, filled(self, stage)) for stage in stages]
        return promise


def scalar(value: Any, params: Params) -> Scalar:
    """A number for the state in a new buffer, in the precision of the equations."""
    dtype = jax.dtypes.canonicalize_dtype(compute_dtype(parameters(params)))
    return jnp.array(value, dtype)


def value_at(opt: Any, name: str, count: Any, like: Array) -> Scalar:
    """The current value of a number or a schedule, in the dtype of `like`."""
    return jnp.asarray(at(opt, name, count), like.dtype)


def corrected_step(opt: Any, d: Array, count: Any) -> Scalar:
    r"""$d\, \eta_t$ with the two bias corrections of Adam, taken from `opt`."""
    t, b1, b2 = (
        safe_increment(count),
        value_at(opt, "b1", count, d),
        value_at(opt, "b2", count, d),
    )
    correction = safe_sqrt(bias_correction(b2, t)) / bias_correction(b1, t)
    return d * value_at(opt, "learning_rate", count, d) * correction


def decay(opt: Any, count: Any, step: Array) -> list[Leafwise]:
    """Decoupled weight decay after updates that already point downhill."""
    own = decay_of(opt)
    if is_off(own):
        return []
    shared = shared_decay(opt, count)
    shared["weight_decay"] = -step * jnp.asarray(shared["weight_decay"], step.dtype)
    return [Leafwise(decay_weights, shared=shared, mask=own.mask)]
