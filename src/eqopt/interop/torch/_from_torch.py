"""torch optimizers as eqopt optimizers."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array

from ..._combinators.chain import Chain
from ..._combinators.partition import Partition
from ..._core import AbstractTransformation
from ..._errors import InputError
from ..._matrices import DimensionNumbers, MatrixDimensionNumbers
from ..._optimizers.adam.adam import Adam, AdamW, NAdam, NAdamW
from ..._optimizers.adam.adamax import Adamax
from ..._optimizers.adam.amsgrad import ScaleByAMSGrad
from ..._optimizers.adam.radam import RAdam, ScaleByRAdam
from ..._optimizers.adaptive.adadelta import Adadelta
from ..._optimizers.adaptive.adagrad import Adagrad
from ..._optimizers.adaptive.rmsprop import RMSprop, ScaleByRMS, ScaleByStddev
from ..._optimizers.layerwise.adafactor import Adafactor
from ..._optimizers.matrix.orthogonalize import Orthogonalize
from ..._optimizers.sgd.sgd import SGD
from ..._optimizers.sign.rprop import Rprop
from ..._transforms.block import ScaleByParamBlockRMS
from ..._transforms.factored_rms import ScaleByFactoredRMS
from ..._transforms.scale import Scale, ScaleByLearningRate, ScaleBySchedule, SetToZero
from ..._transforms.trace import Trace
from ..._transforms.weight_decay import AddDecayedWeights
from ..._trees.leaves import is_leaf, parameters
from ..._types import Mask, Params
from ..._wrappers.averages.param_averages import SWA
from ..._wrappers.scheduled import Scheduled
from ...numerics._numerics import bias_correction, safe_increment
from ...schedules import PiecewiseConstant
from ._convert import Places, given_in, number, places


def from_torch(
    optimizer: Any,
    params: Params | None = None,
    *,
    paths: Sequence[str | None] | None = None,
    transpose: Mask | None = None,
) -> AbstractTransformation:
    """The eqopt optimizer that computes the same numbers as a `torch.optim` optimizer.

    !!! example

        ```python
        opt = from_torch(optimizer)
        state = state_from_torch(opt, optimizer.state_dict(), model)
        model, state = opt.step(grads, state, model)
        ```

    It supports ASGD, Adadelta, Adafactor, Adagrad, Adam, AdamW, Adamax, Muon, NAdam,
    RAdam, RMSprop, Rprop and SGD, with their options. The hyperparameters are the
    current ones of the groups; a learning rate scheduler is not converted. It returns
    the eqopt optimizer with the same name, or a chain of transformations if that
    optimizer has no arguments that give the same numbers.

    Numbers are the same up to rounding, except:

    - Muon iterates in bfloat16 in torch, and in float32 or wider here.
    - eqopt does not have Adafactor's lower bound of the second moment, `eps[0]`:
        gradient entries below it, by default the spacing of numbers at 1, are not
        damped.
    - In torch, Muon divides by at least `eps`, but not here. The difference matters
        only for gradients with a norm below `eps`.
    - NAdam keeps a product in `torch.get_default_dtype()`. In float32, it has fewer
        digits than in eqopt, also for float64 parameters.

    **Arguments:**

    - `optimizer`: a `torch.optim.Optimizer`.
    - `params`: the model. It is needed if there are groups with different
        hyperparameters, or with `paths`, or with `transpose` for Muon.
    - `paths`, `transpose`: how torch's parameters correspond to the parameters of the
        model, as in [`eqopt.interop.torch.params_from_torch`][], in the order of
        `optimizer.param_groups`. With `paths`, parameters of the model that torch's
        optimizer does not have are frozen.

    **Returns:**

    An optimizer; or, for several groups, an [`eqopt.Partition`][] with the labels
    `"group_0"`, `"group_1"` and so on, and `"frozen"`.

    **Raises:**

    A `TypeError` if `optimizer` is not supported. A `ValueError` if an option has no
    counterpart in eqopt, if `params` is missing, and in the same cases as for
    [`eqopt.interop.torch.params_from_torch`][].
    """
    kind = _kind(optimizer)
    groups = optimizer.param_groups
    where = None
    if any(x is not None for x in (params, paths, transpose)):
        given = given_in(groups, lambda tensor: tuple(tensor.shape))
        where = places(given, params, paths, transpose)
    numbers = _numbers(params, where)
    opts = [_recipe(kind, {**_plain(group), "numbers": numbers}) for group in groups]
    are_equal = all(opt == opts[0] for opt in opts)
    if where is None:
        if not are_equal:
            raise InputError(
                f"`optimizer` has {len(groups)} groups with different hyperparameters, "
                "so it needs the model: `from_torch(optimizer, model)`."
            )
        return opts[0]
    are_all = len(where.given) == len(jax.tree.leaves(parameters(params)))
    return opts[0] if are_equal and are_all else _partition(opts, params, where)


def _kind(optimizer: Any) -> str:
    cls = type(optimizer)
    if not (cls.__module__.startswith("torch.optim") and cls.__name__ in _RECIPES):
        raise InputError(
            f"`optimizer` must be one of {', '.join(_RECIPES)} of torch.optim, but is a "
            f"{cls.__module__}.{cls.__qualname__}."
        )
    return cls.__name__


def _plain(group: dict[str, Any]) -> dict[str, Any]:
    """The hyperparameters of a group, without tensors."""
    return {
        name: tuple(map(number, x)) if isinstance(x, tuple | list) else number(x)
        for name, x in group.items()
        if name not in ("params", "param_names")
    }


def _numbers(params: Params | None, where: Places | None) -> DimensionNumbers:
    """torch's matrices have their outputs first; transposed ones have them last."""
    first = MatrixDimensionNumbers(-1, -2)
    if where is None or not where.transposed:
        return first
    last = MatrixDimensionNumbers(-2, -1)

    def numbers(path: tuple, x: Any) -> MatrixDimensionNumbers | None:
        if getattr(x, "ndim", 0) < 2:
            return None
        return last if jtu.keystr(path) in where.transposed else first

    return jtu.tree_map_with_path(numbers, params, is_leaf=is_leaf)


def _partition(opts: Sequence, params: Params | None, where: Places) -> Partition:
    leaves, treedef = jtu.tree_flatten_with_path(params, is_leaf=is_leaf)
    labels = [
        f"group_{where.given[path].group}" if path in where.given else "frozen"
        for path in (jtu.keystr(path) for path, _ in leaves)
    ]
    parts: dict[str, Any] = {f"group_{i}": opt for i, opt in enumerate(opts)}
    return Partition({**parts, "frozen": SetToZero()}, treedef.unflatten(labels))


#
# The optimizer of a parameter group.
#


# Factors that torch's optimizers compute from the number of steps.


@dataclasses.dataclass(frozen=True)
class InversePower:
    r"""$a / (1 + r t)^c$ after $t$ steps."""

    start: float
    rate: float
    power: float = 1.0

    def __call__(self, count: Any) -> Array:
        with jax.numpy_dtype_promotion("standard"):
            return self.start / (1 + self.rate * count) ** self.power


@dataclasses.dataclass(frozen=True)
class RootOfCorrection:
    r"""$a\,(1 - \beta^{t+1})^{c/2}$ after $t$ steps, for $c = 1$ or $-1$."""

    decay: float
    factor: float = 1.0
    sign: int = 1

    def __call__(self, count: Any) -> Array:
        root = jnp.sqrt(bias_correction(self.decay, safe_increment(count)))
        return self.factor * root if self.sign > 0 else self.factor / root


@dataclasses.dataclass(frozen=True)
class RelativeRate:
    r"""$\min(\eta, 1 / \sqrt{t + 1})$ after $t$ steps, the learning rate of Adafactor."""

    most: float

    def __call__(self, count: Any) -> Array:
        with jax.numpy_dtype_promotion("standard"):
            return jnp.minimum(self.most, (count + 1.0) ** -0.5)


# The hyperparameters of a group by their names in torch, as Python numbers. `numbers`
# describe the axes of matrices.
Group = Mapping[str, Any]


def _moments(g: Group) -> dict[str, Any]:
    b1, b2 = g["betas"]
    return {"b1": b1, "b2": b2, "eps": g["eps"]}


def _penalized(g: Group, opt: AbstractTransformation) -> AbstractTransformation:
    """With the weight decay that torch adds to the gradients."""
    decay = g["weight_decay"]
    return Chain(AddDecayedWeights(decay), opt) if decay else opt


def _decays_apart(g: Group) -> bool:
    return bool(g.get("decoupled_weight_decay", False) and g["weight_decay"])


def _sgd(g: Group) -> AbstractTransformation:
    if not g["momentum"]:
        return _penalized(g, SGD(g["lr"]))
    opt = SGD(g["lr"], g["momentum"], bool(g["nesterov"]))
    if g["dampening"]:
        # The first gradient is not dampened.
        factor = PiecewiseConstant(1.0, {1: 1.0 - g["dampening"]})
        opt = Chain(ScaleBySchedule(factor), opt)
    return _penalized(g, opt)


def _adam(g: Group) -> AbstractTransformation:
    if g["amsgrad"]:
        return _amsgrad(g)
    if g.get("decoupled_weight_decay", False):
        return AdamW(g["lr"], **_moments(g), weight_decay=g["weight_decay"])
    return _penalized(g, Adam(g["lr"], **_moments(g)))


def _amsgrad(g: Group) -> AbstractTransformation:
    """The bias is corrected after the maximum, so after the transformation."""
    moments = _moments(g)
    eps = RootOfCorrection(moments["b2"], moments.pop("eps"))
    normalize = [
        Scheduled(ScaleByAMSGrad(**moments, eps=eps, bias_correction_nu=False)),
        ScaleBySchedule(RootOfCorrection(moments["b2"])),
    ]
    descend = ScaleByLearningRate(g["lr"])
    if _decays_apart(g):
        return Chain(*normalize, AddDecayedWeights(g["weight_decay"]), descend)
    return _penalized(g, Chain(*normalize, descend))


def _nadam(g: Group) -> AbstractTransformation:
    moments = {**_moments(g), "momentum_decay": g["momentum_decay"]}
    if _decays_apart(g):
        return NAdamW(g["lr"], **moments, weight_decay=g["weight_decay"])
    return _penalized(g, NAdam(g["lr"], **moments))


def _radam(g: Group) -> AbstractTransformation:
    """In torch, epsilon is added before the bias of the root is corrected."""
    moments = _moments(g)
    if moments["eps"]:
        moments["eps"] = RootOfCorrection(moments["b2"], moments["eps"], -1)
    scheduled = lambda opt: Scheduled(opt) if g["eps"] else opt
    if _decays_apart(g):
        return Chain(
            scheduled(ScaleByRAdam(**moments)),
            AddDecayedWeights(g["weight_decay"]),
            ScaleByLearningRate(g["lr"]),
        )
    return _penalized(g, scheduled(RAdam(g["lr"], **moments)))


def _adamax(g: Group) -> AbstractTransformation:
    return _penalized(g, Adamax(g["lr"], **_moments(g)))


def _adagrad(g: Group) -> AbstractTransformation:
    rate = InversePower(g["lr"], g["lr_decay"]) if g["lr_decay"] else g["lr"]
    start = g["initial_accumulator_value"]
    return _penalized(g, Adagrad(rate, start, g["eps"], eps_in_sqrt=False))


def _adadelta(g: Group) -> AbstractTransformation:
    return Adadelta(g["lr"], g["rho"], g["eps"], weight_decay=g["weight_decay"])


def _rmsprop(g: Group) -> AbstractTransformation:
    centered = bool(g["centered"])
    outside: dict[str, Any] = {"eps": g["eps"], "eps_in_sqrt": False}
    if not g["momentum"]:
        opt = RMSprop(g["lr"], g["alpha"], **outside, centered=centered)
        return _penalized(g, opt)
    # Unlike in `RMSprop`, the learning rate multiplies the momentum.
    kind = ScaleByStddev if centered else ScaleByRMS
    normalize = kind(g["alpha"], **outside)
    descend = ScaleByLearningRate(g["lr"])
    return _penalized(g, Chain(normalize, Trace(g["momentum"]), descend))


def _rprop(g: Group) -> AbstractTransformation:
    return Rprop(g["lr"], *g["etas"], *g["step_sizes"])


# torch's default for the lower bound in float32. A larger bound has an effect.
_NEGLIGIBLE = 1.2e-7


def _adafactor(g: Group) -> AbstractTransformation:
    lower, least = g["eps"]
    if lower is not None and lower > _NEGLIGIBLE:
        raise InputError(
            f"`eps[0]` of Adafactor is {lower}, but eqopt has no such lower bound. It "
            f"must be `None` or at most {_NEGLIGIBLE}."
        )
    common: dict[str, Any] = {
        "decay_rate": -g["beta2_decay"],
        "clipping_threshold": g["d"],
        "eps": 0.0,
        "weight_dimension_numbers": MatrixDimensionNumbers(-2, -1),
    }
    rate, decay = RelativeRate(g["lr"]), g["lr"] * g["weight_decay"]
    if least == 1e-3:
        return Adafactor(rate, weight_decay=decay, **common)
    return Chain(
        ScaleByFactoredRMS(**common),
        ScaleByLearningRate(rate, flip_sign=False),
        ScaleByParamBlockRMS(least),
        AddDecayedWeights(decay),
        Scale(-1.0),
    )


_SCALES: Any = {None: "shape", "original": "shape", "match_rms_adamw": "match_rms"}


def _muon(g: Group) -> AbstractTransformation:
    return Chain(
        Scale(1 - g["momentum"]),
        Trace(g["momentum"], bool(g["nesterov"])),
        Orthogonalize(
            coefficients=tuple(g["ns_coefficients"]),
            steps=g["ns_steps"],
            scale=_SCALES[g["adjust_lr_fn"]],
            eps=0.0,
            weight_dimension_numbers=g["numbers"],
        ),
        AddDecayedWeights(g["weight_decay"]),
        ScaleByLearningRate(g["lr"]),
    )


def _asgd(g: Group) -> AbstractTransformation:
    rate = InversePower(g["lr"], g["lambd"] * g["lr"], g["alpha"])
    # For gradient descent, weight decay and an L2 penalty are the same.
    decay = AddDecayedWeights(g["lambd"] + g["weight_decay"])
    return SWA(Chain(decay, SGD(rate)), int(g["t0"]) + 2)


_RECIPES: Mapping[str, Callable[[Group], AbstractTransformation]] = {
    "ASGD": _asgd,
    "Adadelta": _adadelta,
    "Adafactor": _adafactor,
    "Adagrad": _adagrad,
    "Adam": _adam,
    "AdamW": lambda g: _adam({**g, "decoupled_weight_decay": True}),
    "Adamax": _adamax,
    "Muon": _muon,
    "NAdam": _nadam,
    "RAdam": _radam,
    "RMSprop": _rmsprop,
    "Rprop": _rprop,
    "SGD": _sgd,
}


def _recipe(kind: str, group: Group) -> AbstractTransformation:
    """The optimizer of a group."""
    opt = _RECIPES[kind](group)
    return Chain(Scale(-1.0), opt) if group.get("maximize") else opt
