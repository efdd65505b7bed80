"""Transformations as users write them: annotations are strings, some unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jaxtyping import Array

import eqopt


if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import PyTree
    from somewhere import Rate, State  # type: ignore  # there is no such module


Number = float | Array


@eqopt.equation
def damp(g, *, decay):
    return decay * g


class _Damp(eqopt.AbstractLeafwise):
    def init(self, params: PyTree) -> State:
        return None

    def leafwise(self, state, params=None, **extra):
        return eqopt.Leafwise(damp, state, {"decay": self.value(extra)})

    def value(self, extra):
        return self.decay


class Plain(_Damp):
    decay: float


class Documented(_Damp):
    decay: float | Array


class Alias(_Damp):
    decay: Number


class Unresolvable(_Damp):
    """Its annotation has an unknown name, so only eqopt's schedules are recognised."""

    decay: float | Rate


class Unannotated(_Damp):
    decay: object


class Evaluates(_Damp):
    """Accepts functions of the loss, and calls them itself."""

    decay: float | Callable[[Any], Any]

    def value(self, extra):
        return self.decay(jnp.zeros((), int)) if callable(self.decay) else self.decay


class WithFunctions(_Damp):
    """Functions that are not schedules, in fields whose types mention no numbers."""

    decay: float
    mask: PyTree | None = None
    distance: Callable | None = None
    anything: Any = None
    reference: PyTree[Array] | None = None
    dtype: type[float] | None = None


class Recipe(eqopt.AbstractOptimizer):
    """Its parts evaluate the learning rate, but not the decay."""

    learning_rate: float | Array
    decay: float | Array = 0.9

    @property
    def chain(self):
        return eqopt.Chain(*map(self.part, (eqopt.Trace, eqopt.ScaleByLearningRate)))


class Derived(eqopt.AbstractOptimizer):
    """Computes with its hyperparameter."""

    decay: float | Array

    @property
    def chain(self):
        return eqopt.Chain(eqopt.Scale(1 - self.decay))
