"""What is compiled: every optimizer, and wrappers around AdamW."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import optax
from jaxtyping import DTypeLike
from optax import contrib
from tests.methods import BY_FAMILY, METHODS

import eqopt
from eqopt import storage


class Case(NamedTuple):
    """An optimizer, its counterpart in Optax if it has one, and the parameters' dtype."""

    ours: Callable[[], Any]
    theirs: Callable[[], Any] | None = None
    dtype: DTypeLike = jnp.float32


def _method(name: str) -> Case:
    method = METHODS[name]
    ours = lambda: method.ours(method.default_rate)
    theirs = lambda: method.theirs(method.default_rate)
    return Case(ours, theirs if method.in_optax else None)


def _adamw() -> eqopt.AdamW:
    return eqopt.AdamW(1e-3)


def _clipped() -> eqopt.Chain:
    return eqopt.Chain(eqopt.ClipByGlobalNorm(1.0), _adamw())


def _their_clipped() -> Any:
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))


def _their_steps(inner: Any) -> Any:
    return optax.MultiSteps(inner, 8).gradient_transformation()


def _their_sam() -> Any:
    adversary = optax.chain(contrib.normalize(), optax.sgd(0.05))
    sam = contrib.sam(optax.adamw(1e-3), adversary)
    # It does not take the extra argument `value`.
    without_extra = lambda updates, state, params=None: sam.update(
        updates, state, params
    )
    return optax.GradientTransformation(sam.init, without_extra)


def _skipping(rule: Any) -> Case:
    return Case(lambda: eqopt.MultiSteps(_adamw(), 8, should_skip_update_fn=rule))


def _state(of_state: Any, inner: Callable[[], Any] = _adamw) -> Case:
    return Case(lambda: eqopt.StoreState(inner(), of_state))


def _params(of_params: Any, inner: Callable[[], Any] = _adamw) -> Case:
    return Case(lambda: eqopt.StoreParams(inner(), of_params), dtype=jnp.bfloat16)


# Methods of second order evaluate the loss, and DPSGD takes gradients of each example.
_OTHERS = {method.name for method in BY_FAMILY["second_order"]} | {
    name for name, method in METHODS.items() if method.per_example
}
METHOD_CASES = {name: _method(name) for name in METHODS if name not in _OTHERS}

# Around AdamW, unless the name has another optimizer.
WRAPPER_CASES = {
    "clip + AdamW": Case(_clipped, _their_clipped),
    "MultiSteps": Case(
        lambda: eqopt.MultiSteps(_adamw(), 8),
        lambda: _their_steps(optax.adamw(1e-3)),
    ),
    "MultiSteps, clip": Case(
        lambda: eqopt.MultiSteps(_clipped(), 8), lambda: _their_steps(_their_clipped())
    ),
    "MultiSteps, SkipNotFinite": _skipping(eqopt.SkipNotFinite()),
    "MultiSteps, SkipLargeUpdates": _skipping(eqopt.SkipLargeUpdates(10.0)),
    "SkipStep, SigmaRule": Case(lambda: eqopt.SkipStep(_adamw(), eqopt.SigmaRule())),
    "ApplyIfFinite": Case(
        lambda: eqopt.ApplyIfFinite(_adamw(), 3),
        lambda: optax.apply_if_finite(optax.adamw(1e-3), 3),
    ),
    "DynamicLossScale": Case(lambda: eqopt.DynamicLossScale(_adamw())),
    "AdaptiveGradClip + SGD": Case(
        lambda: eqopt.Chain(eqopt.AdaptiveGradClip(0.01), eqopt.SGD(0.1, 0.9)),
        lambda: optax.chain(optax.adaptive_grad_clip(0.01), optax.sgd(0.1, 0.9)),
    ),
    "Lookahead": Case(lambda: eqopt.Lookahead(_adamw(), 6, 0.5)),
    "ScheduleFree, SGD": Case(
        lambda: eqopt.ScheduleFree(eqopt.SGD(0.1), 0.1),
        lambda: contrib.schedule_free(optax.sgd(0.1), 0.1),
    ),
    "ParamEMA": Case(lambda: eqopt.ParamEMA(_adamw())),
    "SWA": Case(lambda: eqopt.SWA(_adamw(), 10)),
    "GPA": Case(lambda: eqopt.GPA(_adamw())),
    "EMANesterov": Case(lambda: eqopt.EMANesterov(_adamw())),
    "OuterNesterov": Case(lambda: eqopt.OuterNesterov(_adamw())),
    "Cautious": Case(lambda: eqopt.Cautious(_adamw())),
    "Mechanic": Case(
        lambda: eqopt.Mechanic(_adamw()), lambda: contrib.mechanize(optax.adamw(1e-3))
    ),
    "SAM": Case(lambda: eqopt.SAM(_adamw()), _their_sam),
    "state: 8 bits": _state(storage.BlockwiseQuantized()),
    "state: 4 bits": _state(storage.BlockwiseQuantized(4)),
    "state: float8": _state(storage.Float8()),
    "state: bfloat16": _state(storage.Cast(jnp.bfloat16)),
    "state: bfloat16 at random": _state(storage.StochasticRounding(key=0)),
    "state: 8 bits, Lion": _state(
        storage.BlockwiseQuantized(), lambda: eqopt.Lion(1e-3)
    ),
    "Offload": Case(lambda: eqopt.Offload(_adamw())),
    "Offload, state: 8 bits": Case(
        lambda: eqopt.Offload(eqopt.StoreState(_adamw(), storage.BlockwiseQuantized()))
    ),
    "bfloat16": Case(_adamw, lambda: optax.adamw(1e-3), jnp.bfloat16),
    "bfloat16: SplitMasterWeights": _params(storage.SplitMasterWeights()),
    "bfloat16: MasterWeights": _params(storage.MasterWeights()),
    "bfloat16: KahanSummation": _params(storage.KahanSummation()),
    "bfloat16: StochasticRounding": _params(storage.StochasticRounding(key=0)),
    "bfloat16: SplitMasterWeights, clip": _params(
        storage.SplitMasterWeights(), _clipped
    ),
    "Muon, products in bfloat16": Case(lambda: eqopt.Muon(1e-3, ns_dtype=jnp.bfloat16)),
}

CASES = METHOD_CASES | WRAPPER_CASES

# Decompositions of large matrices take many minutes to compile for a TPU.
_SLOW = {"KLShampoo", "MOSO", "Shampoo", "SOAP", "SOAPMuon"}
_SLOW_IN_OPTAX = {"GaLore"}
# Their time goes into copies between two memories, which are not counted.
_COPIES = {"Offload", "Offload, state: 8 bits"}
SKIPPED = {"h100": _COPIES, "tpu": _COPIES | _SLOW}


def cases(names: Sequence[str], platform: str) -> dict[str, Case]:
    """The named cases. Without names, all that compile for the platform in minutes."""
    for name in names:
        if name not in CASES:
            raise ValueError(
                f"unknown case {name!r}; expected names from: {', '.join(CASES)}"
            )
    skipped = SKIPPED.get(platform, set())
    chosen = {
        name: CASES[name] for name in names or CASES if names or name not in skipped
    }
    if platform == "tpu":
        for name in _SLOW_IN_OPTAX & chosen.keys():
            chosen[name] = chosen[name]._replace(theirs=None)
    return chosen
