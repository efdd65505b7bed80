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
    """A value for eqopt, and the same for the library that it is compared with."""

    eqopt: T
    other: T

    def map(self, fn: Callable[[T], S]) -> "Pair[S]":
        return Pair(fn(self.eqopt), fn(self.other))


class Optimizer(Protocol):
    """The interface that is measured. The transformations of eqopt implement it."""

    def init(self, params: Any) -> Any: ...

    def update(self, updates: Any, state: Any, params: Any) -> tuple[Any, Any]: ...

    def step(
        self, grads: Any, state: Any, params: Any, **extra: Any
    ) -> tuple[Any, Any]: ...


@dataclass(frozen=True)
class _Wrapped:
    transformation: Any

    def init(self, params: Any) -> Any:
        return self.transformation.init(params)

    def update(self, updates: Any, state: Any, params: Any) -> tuple[Any, Any]:
        return self.transformation.update(updates, state, params)


class Optax(_Wrapped):
    """An Optax transformation, with the `step` that its users write by hand."""

    def step(
        self, grads: Any, state: Any, params: Any, **extra: Any
    ) -> tuple[Any, Any]:
        takes_extra = optax.with_extra_args_support(self.transformation)
        updates, state = takes_extra.update(grads, state, params, **extra)
        return optax.apply_updates(params, updates), state


class ByUpdate(_Wrapped):
    """A transformation of eqopt that steps like Optax: `update`, then `apply_updates`."""

    def step(
        self, grads: Any, state: Any, params: Any, **extra: Any
    ) -> tuple[Any, Any]:
        updates, state = self.transformation.update(grads, state, params, **extra)
        return eqopt.apply_updates(params, updates), state


def _every_second(step: Any, **extra: Any) -> Any:
    return step % 2 == 0


class _OptaxLookahead(Optax):
    """Optax's Lookahead, for pairs of parameters. The slow ones are kept in the state."""

    def init(self, params: Any) -> Any:
        pair = optax.LookaheadParams.init_synced(params)
        return self.transformation.init(pair), pair.slow

    def step(
        self, grads: Any, state: Any, params: Any, **extra: Any
    ) -> tuple[Any, Any]:
        inner, slow = state
        pair: Any = optax.LookaheadParams(params, slow)
        updates, inner = self.transformation.update(grads, inner, pair)
        new: Any = optax.apply_updates(pair, updates)
        return new.fast, (inner, new.slow)


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
MULTI_STEPS_UPDATE: Pair[Optimizer] = Pair(
    ByUpdate(MULTI_STEPS.eqopt), MULTI_STEPS.other
)
MULTI_STEPS_MUON: Pair[Optimizer] = Pair(
    eqopt.MultiSteps(eqopt.Muon(1e-3), 8),
    Optax(optax.MultiSteps(optax.contrib.muon(1e-3), 8)),
)
LOOKAHEAD: Pair[Optimizer] = Pair(
    eqopt.Lookahead(eqopt.AdamW(1e-3), 5, 0.5),
    _OptaxLookahead(optax.lookahead(optax.adamw(1e-3), 5, 0.5)),
)
CONDITIONALLY_TRANSFORM: Pair[Optimizer] = Pair(
    eqopt.ConditionallyTransform(eqopt.AdamW(1e-3), _every_second),
    Optax(optax.conditionally_transform(optax.adamw(1e-3), _every_second)),
)
FLATTEN: Pair[Optimizer] = Pair(
    eqopt.Flatten(eqopt.AdamW(1e-3)), Optax(optax.flatten(optax.adamw(1e-3)))
)


class Beside(NamedTuple):
    """An optimizer around AdamW that Optax does not have.

    **Attributes:**

    - `what`: its name in the table.
    - `optimizer`: the optimizer.
    - `copies`: how many numbers a step reads or writes for each parameter. For AdamW, it
        is 7: it reads the gradient, and reads and writes the parameter and two moments.
    """

    what: str
    optimizer: Optimizer
    copies: float


ADAMW = eqopt.AdamW(1e-3)
BESIDE_ADAMW: dict[str, Beside] = {
    "cautious-decay": Beside(
        "AdamW with cautious decay",
        eqopt.AdamW(1e-3, weight_decay=eqopt.AddDecayedWeights(0.1, cautious=True)),
        7,
    ),
    # Counting reads the gradient and both moments once more.
    "cautious": Beside("Cautious(AdamW)", eqopt.Cautious(ADAMW), 10),
    "grokfast": Beside("Grokfast + AdamW", eqopt.Chain(eqopt.Grokfast(), ADAMW), 9),
    "gpa": Beside("GPA(AdamW)", eqopt.GPA(ADAMW), 9),
    "ema-nesterov": Beside("EMANesterov(AdamW)", eqopt.EMANesterov(ADAMW), 9),
    # Every 10 steps, it reads and writes two copies more.
    "outer-nesterov": Beside(
        "OuterNesterov(AdamW, 10)", eqopt.OuterNesterov(ADAMW, 10), 7.4
    ),
    # The direction is written once and read twice, and the parameter is read three times.
    "hyperball": Beside(
        "Hyperball(Adam)", eqopt.Hyperball(eqopt.ScaleByAdam(), 1e-3), 12
    ),
}
