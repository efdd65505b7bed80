"""Every optimizer, in both libraries."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import optax
from optax import contrib

import eqopt


class Contestant(NamedTuple):
    """One optimizer, as a function of the learning rate.

    **Attributes:**

    - `ours`, `theirs`: make it, with the defaults for all else. Where Optax's defaults
        are other ones, `theirs` has eqopt's.
    - `temporary`: the target in `python -m benchmarks`: temporary memory of a step below
        this times the parameters. `None` for those that do not work element by element.
    - `ratio`: the target for the time of a step, over Optax's.
    - `per_example`: whether it wants the gradients of each example.
    - `deviates`: why it does not follow Optax's trajectory, where it does not.
    """

    ours: Callable[[Any], Any]
    theirs: Callable[[Any], Any]
    temporary: float | None = 0.01
    ratio: float = 1.05
    per_example: bool = False
    deviates: str = ""


def _optax_dpsgd(rate: Any) -> Any:
    with warnings.catch_warnings():  # Optax is about to drop it
        warnings.simplefilter("ignore", DeprecationWarning)
        return contrib.dpsgd(rate, 1.0, 0.0, 0)


OPTIMIZERS = {
    "ACProp": Contestant(
        eqopt.ACProp,
        contrib.acprop,
        deviates="it rectifies the first steps, as its authors do",
    ),
    "AdaBelief": Contestant(eqopt.AdaBelief, optax.adabelief, ratio=0.7),
    "Adadelta": Contestant(eqopt.Adadelta, optax.adadelta),
    "Adafactor": Contestant(eqopt.Adafactor, optax.adafactor, temporary=0.5),
    "Adagrad": Contestant(eqopt.Adagrad, optax.adagrad),
    "Adam": Contestant(eqopt.Adam, optax.adam),
    "AdamW": Contestant(eqopt.AdamW, optax.adamw),
    "Adamax": Contestant(eqopt.Adamax, optax.adamax),
    "AdamaxW": Contestant(eqopt.AdamaxW, optax.adamaxw),
    "Adan": Contestant(
        eqopt.Adan, optax.adan, ratio=0.7, deviates="it is that of its authors"
    ),
    "AdEMAMix": Contestant(eqopt.AdEMAMix, contrib.ademamix),
    "ADOPT": Contestant(eqopt.ADOPT, contrib.adopt),
    "AMSGrad": Contestant(eqopt.AMSGrad, optax.amsgrad),
    "COCOB": Contestant(eqopt.COCOB, contrib.cocob),
    "DAdaptAdamW": Contestant(eqopt.DAdaptAdamW, contrib.dadapt_adamw, temporary=None),
    "DoG": Contestant(eqopt.DoG, contrib.dog, temporary=None),
    "DoWG": Contestant(eqopt.DoWG, contrib.dowg, temporary=None),
    "DPSGD": Contestant(
        lambda rate: eqopt.DPSGD(rate, 1.0, 0.0, key=0),
        _optax_dpsgd,
        temporary=None,
        per_example=True,
    ),
    "Fromage": Contestant(eqopt.Fromage, optax.fromage, temporary=None),
    "GaLore": Contestant(
        eqopt.GaLore,
        contrib.galore,
        temporary=None,
        deviates="it projects the short side of a matrix, Optax the long one",
    ),
    "LAMB": Contestant(eqopt.LAMB, optax.lamb, temporary=1.01, ratio=0.7),
    "LARS": Contestant(eqopt.LARS, optax.lars, temporary=None),
    "Lion": Contestant(eqopt.Lion, optax.lion, ratio=0.7),
    "MADGRAD": Contestant(eqopt.MADGRAD, contrib.madgrad),
    "MoMo": Contestant(eqopt.MoMo, contrib.momo, temporary=None),
    "MoMoAdam": Contestant(eqopt.MoMoAdam, contrib.momo_adam, temporary=None),
    "Muon": Contestant(eqopt.Muon, contrib.muon, temporary=0.2),
    "NAdam": Contestant(eqopt.NAdam, optax.nadam),
    "NAdamW": Contestant(eqopt.NAdamW, optax.nadamw),
    "NoisySGD": Contestant(
        lambda rate: eqopt.NoisySGD(rate, key=0),
        lambda rate: optax.noisy_sgd(rate, key=0),
        deviates="the noise is another",
    ),
    "NovoGrad": Contestant(eqopt.NovoGrad, optax.novograd, temporary=None),
    "OptimisticAdam": Contestant(eqopt.OptimisticAdam, optax.optimistic_adam_v2),
    "OptimisticGradientDescent": Contestant(
        eqopt.OptimisticGradientDescent, optax.optimistic_gradient_descent
    ),
    "PolyakSGD": Contestant(eqopt.PolyakSGD, optax.polyak_sgd, temporary=None),
    "Prodigy": Contestant(eqopt.Prodigy, contrib.prodigy, temporary=None),
    "RAdam": Contestant(eqopt.RAdam, optax.radam),
    "RMSprop": Contestant(eqopt.RMSprop, optax.rmsprop),
    "Rprop": Contestant(eqopt.Rprop, optax.rprop, deviates="Optax's is one step late"),
    "ScheduleFreeAdamW": Contestant(
        eqopt.ScheduleFreeAdamW, contrib.schedule_free_adamw
    ),
    "ScheduleFreeSGD": Contestant(eqopt.ScheduleFreeSGD, contrib.schedule_free_sgd),
    "SGD": Contestant(eqopt.SGD, optax.sgd),
    "SignSGD": Contestant(eqopt.SignSGD, optax.sign_sgd),
    "Signum": Contestant(eqopt.Signum, optax.signum),
    "SimplifiedAdEMAMix": Contestant(
        eqopt.SimplifiedAdEMAMix, contrib.simplified_ademamix
    ),
    "SM3": Contestant(eqopt.SM3, optax.sm3, temporary=None),
    "Sophia": Contestant(eqopt.Sophia, contrib.sophia, temporary=None),
    "Yogi": Contestant(eqopt.Yogi, optax.yogi),
}
