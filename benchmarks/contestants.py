"""The same optimizers in both libraries."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import optax
import optax.contrib

import eqopt


T = TypeVar("T")
S = TypeVar("S")


class Pair(NamedTuple, Generic[T]):
    """Something of eqopt's, and the same of the library that it is measured by."""

    eqopt: T
    other: T

    def map(self, fn: Callable[[T], S]) -> "Pair[S]":
        return Pair(fn(self.eqopt), fn(self.other))


class Optimizer(Protocol):
    """What is measured; eqopt's transformations are this as they stand."""

    def init(self, params: Any) -> Any: ...

    def update(self, updates: Any, state: Any, params: Any) -> tuple[Any, Any]: ...

    def step(
        self, grads: Any, state: Any, params: Any, **extra: Any
    ) -> tuple[Any, Any]: ...


@dataclass(frozen=True)
class Optax:
    """An Optax transformation, with the `step` that its users write by hand."""

    transformation: Any

    def init(self, params: Any) -> Any:
        return self.transformation.init(params)

    def update(self, updates: Any, state: Any, params: Any) -> tuple[Any, Any]:
        return self.transformation.update(updates, state, params)

    def step(
        self, grads: Any, state: Any, params: Any, **extra: Any
    ) -> tuple[Any, Any]:
        takes_extra = optax.with_extra_args_support(self.transformation)
        updates, state = takes_extra.update(grads, state, params, **extra)
        return optax.apply_updates(params, updates), state


CLIP_ADAMW: Pair[Optimizer] = Pair(
    eqopt.Chain(eqopt.ClipByGlobalNorm(1.0), eqopt.AdamW(1e-3)),
    Optax(optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))),
)
MULTI_STEPS: Pair[Optimizer] = Pair(
    eqopt.MultiSteps(eqopt.AdamW(1e-3), 8),
    Optax(optax.MultiSteps(optax.adamw(1e-3), 8)),
)
APPLY_IF_FINITE: Pair[Optimizer] = Pair(
    eqopt.ApplyIfFinite(eqopt.AdamW(1e-3), 5),
    Optax(optax.apply_if_finite(optax.adamw(1e-3), 5)),
)
MOMENTUM: Pair[Optimizer] = Pair(
    eqopt.SGD(1e-3, momentum=0.9), Optax(optax.sgd(1e-3, momentum=0.9))
)
MUON: Pair[Optimizer] = Pair(eqopt.Muon(1e-3), Optax(optax.contrib.muon(1e-3)))
