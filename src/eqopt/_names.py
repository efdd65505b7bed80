"""Finds the right name if a name has the wrong room or Optax's spelling.

This module is only imported if a name is missing.
"""

import ast
import difflib
import functools
import pathlib
import re
from collections.abc import Callable, Mapping


# Optax's names that differ from eqopt's in more than spelling. (`adam_w` and
# `cosine_decay_schedule` are other spellings of `AdamW` and `schedules.CosineDecay`.)
RENAMED: Mapping[str, str] = {
    "Aggregator": "aggregating.AbstractAggregator",
    "ApplyEvery": "ApplyEveryState",
    "COCOBState": "ScaleByCOCOBState",
    "FactoredState": "ScaleByFactoredRMSState",
    "GaLoreDimensionNumbers": "MatrixDimensionNumbers",
    "GaLoreState": "ScaleByGaLoreState",
    "GradientTransformation": "AbstractTransformation",
    "GradientTransformationExtraArgs": "AbstractTransformation",
    "HutchinsonState": "HutchinsonDiagHessianState",
    "InjectHyperparamsState": "ScheduledState",
    "InjectStatefulHyperparamsState": "ScheduledState",
    "MadgradState": "ScaleByMADGRADState",
    "MaybeUpdateState": "ConditionallyTransformState",
    "MultiTransformState": "PartitionState",
    "MuonDimensionNumbers": "MatrixDimensionNumbers",
    "MuonState": "ScaleByMuonState",
    "ScaleByRStdDevState": "ScaleByStddevState",
    "StatefulSchedule": "schedules.AbstractStatefulSchedule",
    "convex_kl_divergence": "losses.generalized_kl_divergence",
    "get_per_element_mean_and_sum_sq_diff_grads": (
        "aggregating.PerElementMeanAndSumSqDiffGrads"
    ),
    "global_norm": "tree.norm",
    "hutchinson_estimator_diag_hessian": "HutchinsonDiagHessian",
    "inject_hyperparams": "Scheduled",
    "inject_stateful_hyperparams": "Scheduled",
    "mechanize": "Mechanic",
    "multi_normal": "monte_carlo.MultiNormalDiag",
    "multi_transform": "Partition",
    "optimistic_adam_v2": "OptimisticAdam",
    "reduce_on_plateau": "ReduceLROnPlateau",
    "safe_int32_increment": "numerics.safe_increment",
    "tree_utils": "tree",
    # Names in torch and in libraries around it.
    "AveragedModel": "ParamEMA",
    "ConstantLR": "schedules.PiecewiseConstant",
    "CosineAnnealingLR": "schedules.CosineDecay",
    "CosineAnnealingWarmRestarts": "schedules.CosineRestarts",
    "ExponentialLR": "schedules.ExponentialDecay",
    "ExponentialMovingAverage": "ParamEMA",
    "GradScaler": "DynamicLossScale",
    "GradientAccumulation": "MultiSteps",
    "MultiStepLR": "schedules.MultiStep",
    "OneCycleLR": "schedules.CosineOneCycle",
    "PolynomialLR": "schedules.Polynomial",
    "SequentialLR": "schedules.Join",
    "StepLR": "schedules.Step",
    "ZeroRedundancyOptimizer": "ZeRO1",
    "clip_grad_norm_": "ClipByGlobalNorm",
    "clip_grad_value_": "Clip",
}


_STATELESS = "The state of a transformation without state is `None`."
_NO_SUCH_ROOM = "All transformations are in `eqopt` itself: `eqopt.Muon`."

_IN_8_BITS = (
    "Wrap an optimizer: `eqopt.StoreState(eqopt.AdamW(1e-3), "
    "eqopt.storage.BlockwiseQuantized())`."
)

# Names in Optax and elsewhere that have no equivalent name here.
GONE: Mapping[str, str] = {
    "Adam8bit": _IN_8_BITS,
    "AdamW8bit": _IN_8_BITS,
    "LambdaLR": "A schedule can be any function of the number of steps.",
    "MaskedNode": "If a mask excludes a parameter, the state holds `None`.",
    "WrappedSchedule": "`eqopt.Scheduled` accepts functions of the count directly.",
    "contrib": _NO_SUCH_ROOM,
    "experimental": "See `eqopt.aggregating`.",
    "scale_gradient": (
        "Write `scale * x + jax.lax.stop_gradient((1 - scale) * x)` instead."
    ),
    "schedule_free_eval_params": (
        "It is a method of every optimizer: `opt.eval_params(state, model)`."
    ),
    "transforms": _NO_SUCH_ROOM,
    "with_extra_args_support": (
        "Omit it: every transformation accepts extra arguments and passes them on."
    ),
    **dict.fromkeys(
        (
            "AdaptiveGradClipState",
            "ClipByGlobalNormState",
            "ClipState",
            "EmptyState",
            "NonNegativeParamsState",
            "NormalizeState",
            "ScaleByTrustRatioState",
            "ScaleState",
            "init_empty_state",
        ),
        _STATELESS,
    ),
}


def missing(package: str, name: str) -> str:
    """The message if `package` has no attribute `name`."""
    message = f"module {package!r} has no attribute {name!r}"
    if name.startswith("__"):
        return message
    advice = GONE.get(name) or _advice(package.partition(".")[2], name)
    return f"{message}. {advice}" if advice else message


@functools.cache
def _advice(room: str, name: str) -> str:
    found, is_sure = meant(room, name)
    listed = " or ".join(f"`eqopt.{x}`" for x in found)
    return listed and (f"It is {listed}." if is_sure else f"Did you mean {listed}?")


def meant(room: str, name: str) -> tuple[list[str], bool]:
    """The public names that may be meant, and whether they are certain."""
    if name in RENAMED:
        return [RENAMED[name]], True
    # Names in another case; names without Optax's affixes; names with a typo.
    for spelling in (_plain, _bare):
        found = _spelt(spelling).get(spelling(name))
        if found:
            return _nearest(_in_turn(found, room), name, room), True
    plain = _spelt(_plain)
    close = difflib.get_close_matches(_plain(name), plain, n=3, cutoff=0.75)
    found = [x for key in close for x in _in_turn(plain[key], room)]
    begun = [x for key in plain if key.startswith(_plain(name)) for x in plain[key]]
    return _nearest(found or _in_turn(begun, room), name, room)[:3], False


def _in_turn(names: list[str], room: str) -> list[str]:
    """The names, with names in the room first."""
    return sorted(names, key=lambda x: (x.rpartition(".")[0] != room, x))


@functools.cache
def _spelt(spelling: Callable[[str], str]) -> Mapping[str, list[str]]:
    """The public names, by the spelling of their last part."""
    names = {}
    for x in public_names():
        names.setdefault(spelling(x.rpartition(".")[2]), []).append(x)
    return names


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


_AFFIXES = re.compile("^(tree|projection)_|_schedules?$")


def _bare(name: str) -> str:
    return _plain(_AFFIXES.sub("", name) or name)


def _nearest(found: list[str], name: str, room: str) -> list[str]:
    """The names in the room, or in the room that the name begins with, if any."""
    for prefix in (name.partition("_")[0], room):
        here = [x for x in found if x.rpartition(".")[0] == prefix]
        if here:
            return here
    return found


@functools.cache
def public_names() -> tuple[str, ...]:
    """All public names, as listed in the stubs: `Adam`, `schedules.Linear`."""
    root = pathlib.Path(__file__).parent
    names = []
    for stub in sorted(root.rglob("__init__.pyi")):
        room = ".".join(stub.parent.relative_to(root).parts)
        for node in ast.parse(stub.read_text()).body:
            if isinstance(node, ast.ImportFrom):
                names += [f"{room}.{x.name}" if room else x.name for x in node.names]
    numerics = ast.parse((root / "numerics.py").read_text()).body
    defined = [node.name for node in numerics if isinstance(node, ast.FunctionDef)]
    return (*names, *(f"numerics.{x}" for x in defined if not x.startswith("_")))
