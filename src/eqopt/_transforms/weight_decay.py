"""Pulls parameters towards zero."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._arguments.checks import check_needs, check_no_schedule
from .._arguments.fields import static_choice
from .._core import AbstractLeafwise, AbstractTransformation, Leafwise, equation
from .._errors import InputError
from .._trees.masks import mask_out
from .._trees.routes import Report
from .._types import Leaf, Mask, Params, Positive, RealLeaf, ScalarOrSchedule
from ..numerics._numerics import safe_increment
from .normalize import ratio
from .scale import at, same


Mode: TypeAlias = Literal[
    "decoupled", "corrected", "fully_decoupled", "independent", "squared"
]

# What optimizers accept as `weight_decay`: a number, or a complete description.
WeightDecay: TypeAlias = ScalarOrSchedule | AbstractTransformation


# The factor of the decay, before a learning rate multiplies everything.
_FACTORS: dict[str, Callable[[Any, Any], Array]] = {
    "corrected": lambda eta, eta_max: eta / eta_max,
    "fully_decoupled": lambda eta, eta_max: 1 / eta_max,
    "independent": lambda eta, eta_max: ratio(jnp.ones_like(eta), eta),
    "squared": lambda eta, eta_max: eta,
}
_NEEDS_MAXIMUM = ("corrected", "fully_decoupled")
_NEEDS_RATE = ("corrected", "independent", "squared")


class AddDecayedWeightsState(eqx.Module):
    """`count`: the steps taken so far, a 0-d int32 array; `None` without a schedule."""

    count: Int[Array, ""] | None


@equation(elementwise=True)
def decay_weights(g, p, *, weight_decay, cautious):
    return decayed(g, p, weight_decay, cautious)


def decayed(g, p, weight_decay: Float[Array, "..."], cautious) -> Leaf:
    """The update `g` and the decay of `p`; if cautious, only where both go one way."""
    decay = weight_decay * p
    return g + (jnp.where(alignment(g, decay) >= 0, decay, 0) if cautious else decay)


def alignment(x: Leaf, y: Leaf) -> RealLeaf:
    """Positive where they have the same sign, negative where they have opposite signs.

    This is not their product, which underflows to zero for small numbers.
    """
    return jnp.real(jnp.conj(jnp.sign(x)) * y)


def is_off(weight_decay: WeightDecay) -> bool:
    """Whether it is the number zero, so that no array needs to be read."""
    if isinstance(weight_decay, AddDecayedWeights):
        return is_off(weight_decay.weight_decay)
    return isinstance(weight_decay, int | float) and bool(weight_decay == 0)


class AddDecayedWeights(AbstractLeafwise):
    r"""Adds a multiple of the parameters to the updates: $u = g + \lambda p$.

    After the preconditioner and before the learning rate, this is decoupled weight
    decay, as in AdamW. Before the preconditioner, it is an $L^2$ penalty.

    Every optimizer with decoupled weight decay accepts an `AddDecayedWeights` as its
    `weight_decay`, instead of a number. The optimizer passes its learning rate and mask
    to it. What else a method does to its decay, it also does to this one:
    [`eqopt.AdamP`][] and [`eqopt.SGDP`][] reduce it where they project weights,
    [`eqopt.SGDP`][] divides it by $1 - \beta$, [`eqopt.StableAdamW`][] divides it
    together with the update, [`eqopt.NAMO`][] multiplies both by its factor, and
    [`eqopt.Prodigy`][] and [`eqopt.DAdaptAdamW`][] multiply it by their step size instead
    of $\eta_t$. Some take only a number, because
    their decay is something else:

    - an $L^2$ penalty in [`eqopt.Adadelta`][], [`eqopt.COCOB`][], [`eqopt.DoG`][],
        [`eqopt.DoWG`][], [`eqopt.LARS`][] and [`eqopt.MADGRAD`][]; an
        `AddDecayedWeights` before them in a chain does the same;
    - not multiplied by the learning rate in [`eqopt.Adafactor`][];
    - part of the loss that gives the step size in [`eqopt.MoMo`][] and
        [`eqopt.MoMoAdam`][];
    - of other weights than those that move in [`eqopt.ScheduleFreePlus`][];
    - a proximal step, together with the update, in [`eqopt.Adan`][];
    - part of the momentum in [`eqopt.NovoGrad`][] and [`eqopt.ScaleByNovoGrad`][];
    - of the norms of rows in [`eqopt.Muown`][] and [`eqopt.ScaleByMuown`][];
    - part of the learned factor in [`eqopt.Mechanic`][].

    !!! example

        ```python
        eta = eqopt.schedules.CosineDecay(3e-3, 1000)
        decay = eqopt.AddDecayedWeights(
            0.1, cautious=True, mode="corrected", max_learning_rate=3e-3
        )
        opt = eqopt.AdamW(eta, weight_decay=decay)
        ```

    The amount that a step subtracts from the parameters depends on `mode`, with the
    learning rate $\eta_t$ that follows in the chain:

    | `mode` | taken off | also known as |
    | --- | --- | --- |
    | `"decoupled"` | $\eta_t \lambda\, p$ | AdamW |
    | `"corrected"` | $(\eta_t^2 / \eta_{\max}) \lambda\, p$ | AdamC |
    | `"fully_decoupled"` | $(\eta_t / \eta_{\max}) \lambda\, p$ | `decouple_lr` |
    | `"independent"` | $\lambda\, p$, but nothing where $\eta_t = 0$ | |
    | `"squared"` | $\eta_t^2 \lambda\, p$ | |

    The corrected mode is for weights followed by a normalization layer: their norm then
    settles at a value that does not depend on the learning rate. Select them by `mask`.
    With `"squared"`, $\lambda$ is 10 to 1000 times larger than otherwise.

    **Arguments:**

    - `weight_decay`: $\lambda$, a number, a 0-d array, or a schedule. If it is the
        number zero, `params` is not needed. Defaults to 0.0.
    - `mask`: which parameters decay: a tree of Python bools like the parameters or a
        prefix of it, or a function of the parameters that gives one, as in
        [`eqopt.Masked`][]. Defaults to all.
    - `cautious`: whether to decay only entries that the update does not make larger:
        those with $\lambda g p \ge 0$. This works only before the learning rate, which
        changes the sign of the updates. Defaults to `False`.
    - `mode`: a name in the first column of the table. Defaults to `"decoupled"`.
    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule: the same as in the
        [`eqopt.ScaleByLearningRate`][] that follows. Needed if `mode` depends on it;
        `None` by default. Optimizers pass their own learning rate.
    - `max_learning_rate`: $\eta_{\max} > 0$, the largest value of $\eta$ during the
        whole training. Needed if `mode` depends on it; `None` by default.

    **Raises:**

    A `ValueError` if an argument is out of its range, or if an argument that `mode`
    needs is missing, and in `update` if `params` is `None`.

    ??? cite "References"

        ```bibtex
        @inproceedings{loshchilov2019decoupled,
            author = {Loshchilov, Ilya and Hutter, Frank},
            title = {Decoupled Weight Decay Regularization},
            booktitle = {International Conference on Learning Representations},
            year = {2019},
        }
        @article{defazio2025gradients,
            author = {Defazio, Aaron},
            title = {Why Gradients Rapidly Increase Near the End of Training},
            journal = {arXiv:2506.02285},
            year = {2025},
        }
        @article{chen2025cautious,
            title = {Cautious Weight Decay},
            author = {Chen, Lizhang and Li, Jonathan and Liang, Kaizhao and Su, Baiyu and
                      Xie, Cong and Pierse, Nuo Wang and Liang, Chen and Lao, Ni and
                      Liu, Qiang},
            journal = {arXiv:2510.12402},
            year = {2025},
        }
        ```
    """

    weight_decay: WeightDecay = 0.0
    mask: Mask | None = static_choice(default=None)
    cautious: bool = static_choice(static=True, default=False)
    mode: Mode = eqx.field(static=True, default="decoupled")
    learning_rate: ScalarOrSchedule | None = None
    max_learning_rate: Positive | None = None

    def __check_init__(self) -> None:
        _check_given(complete(self), "max_learning_rate", _NEEDS_MAXIMUM)

    def init(self, params: Params) -> AddDecayedWeightsState:
        decay = complete(self)
        check_no_schedule(decay, in_any_field=True)
        _check_given(decay, "learning_rate", _NEEDS_RATE)
        has_schedule = callable(decay.weight_decay) or (
            decay.mode in _NEEDS_RATE and callable(decay.learning_rate)
        )
        count = jnp.zeros((), jnp.int32) if has_schedule else None
        return AddDecayedWeightsState(count)

    def _route(self, report: Report, params: Params) -> None:
        decay = complete(self)
        if not is_off(decay):
            mask = decay.mask
            decaying = params if mask is None else mask_out(params, mask, params)
            report.decay(decaying, decay.weight_decay)

    def leafwise(
        self, state: AddDecayedWeightsState, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        decay = complete(self)
        if is_off(decay):
            return Leafwise(same, state)
        shared = decay_at(decay, state.count)
        if state.count is not None:
            state = AddDecayedWeightsState(safe_increment(state.count))
        return Leafwise(decay_weights, state, shared, mask=decay.mask)


def _check_given(decay: AddDecayedWeights, name: str, modes: tuple[str, ...]) -> None:
    is_met = decay.mode not in modes or getattr(decay, name) is not None
    fix = "Optimizers fill in their `learning_rate` themselves."
    check_needs(f"mode={decay.mode!r}", name, is_met, fix)


def complete(decay: AddDecayedWeights) -> AddDecayedWeights:
    """`decay`, or the `AddDecayedWeights` passed as its `weight_decay`, completed."""
    given = decay.weight_decay
    if not isinstance(given, AbstractTransformation):
        return decay
    is_plain = decay.mode == "decoupled" and not decay.cautious
    if not (
        is_plain
        and decay.max_learning_rate is None
        and isinstance(given, AddDecayedWeights)
        and not isinstance(given.weight_decay, AbstractTransformation)
        and (decay.mask is None or given.mask is None)
    ):
        raise InputError(
            "`weight_decay` must be a number, a schedule, or an `AddDecayedWeights` that "
            f"alone defines the decay and its mask, but is {given!r}."
        )
    missing = {
        name: getattr(decay, name)
        for name in ("mask", "learning_rate")
        if getattr(given, name) is None
    }
    return dataclasses.replace(given, **missing)


def decay_at(decay: AddDecayedWeights, count: Int[Array, ""] | None) -> dict[str, Any]:
    """The arguments of `decayed` after `count` steps, `None` without a schedule."""
    weight_decay = at(decay, "weight_decay", count)
    if decay.mode != "decoupled":
        needs_rate = decay.mode in _NEEDS_RATE
        eta = at(decay, "learning_rate", count) if needs_rate else None
        real = jax.dtypes.canonicalize_dtype(float)
        given = eta, decay.max_learning_rate
        rates = (None if x is None else jnp.asarray(x, real) for x in given)
        weight_decay = jnp.asarray(weight_decay, real) * _FACTORS[decay.mode](*rates)
    return {"weight_decay": weight_decay, "cautious": decay.cautious}
