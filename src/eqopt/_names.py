"""Finds the right name of a class or an argument that has another name elsewhere.

This module is only imported if a name is missing, or for names in plain data.
"""

import ast
import difflib
import functools
import pathlib
import re
from collections.abc import Collection, Mapping


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
    "OptState": "State",
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
            *("AdaptiveGradClipState", "ClipByGlobalNormState", "ClipState"),
            *("EmptyState", "NonNegativeParamsState", "NormalizeState"),
            *("ScaleByTrustRatioState", "ScaleState", "init_empty_state"),
        ),
        _STATELESS,
    ),
}


# Arguments, and their names in other libraries (`torch.optim`, Keras, Optax).
_ARGUMENTS_ELSEWHERE: Mapping[str, str] = {
    "init_value": "base_lr",
    "peak_value": "base_lr",
    "learning_rate": "lr step_size base_lr",
    "decay": "alpha beta",
    "beta": "momentum",
    "b1": "beta beta1 beta_1 momentum",
    "b2": "beta2 beta_2",
    "b3": "beta3",
    "eps": "epsilon",
    "weight_decay": "wd weight_decay_rate",
    "mask": "weight_decay_mask",
    "mu_dtype": "dtype_momentum momentum_dtype",
    "accumulator_dtype": "momentum_dtype",
    "nesterov": "use_nesterov",
    "key": "seed rng random_seed rng_key",
    "inner": "opt tx optimizer inner_optimizer base_optimizer fast_optimizer transform",
    "adversary": "adv_optimizer",
    "transformations": "transforms",
    "labels": "param_labels",
    "every_k_schedule": "every_k",
    "schedule": "step_size_fn",
    "weight_dimension_numbers": "muon_weight_dimension_numbers",
    "decay_steps": "T_max",
    "decay_rate": "gamma",
}

# The names here of a name elsewhere. The first one that a class has is the right one.
ARGUMENTS: dict[str, tuple[str, ...]] = {}
for _here, _elsewhere in _ARGUMENTS_ELSEWHERE.items():
    for _name in _elsewhere.split():
        ARGUMENTS[_name] = (*ARGUMENTS.get(_name, ()), _here)

# What to do instead of an argument that has no equivalent name.
INSTEAD: Mapping[str, str] = {
    "amsgrad": "Use the class `eqopt.AMSGrad`.",
    "betas": "Write `betas=(b1, b2)` as `b1=..., b2=...`.",
    "capturable": "Omit it: every step can be compiled.",
    "clipnorm": "Put it first: `eqopt.Chain(eqopt.ClipByGlobalNorm(1.0), optimizer)`.",
    "differentiable": "Omit it: every step can be differentiated.",
    "foreach": "Omit it: XLA fuses each step.",
    "fused": "Omit it: XLA fuses each step.",
    "lr": "Put the learning rate last: `eqopt.Chain(..., "
    "eqopt.ScaleByLearningRate(1e-3))`.",
    "mask": "To train only some parameters, wrap the whole optimizer: "
    "`eqopt.SelectiveTransform(optimizer, freeze_mask=frozen)`.",
    "mask_compatible_extra_args": "Omit it: extra arguments are masked if necessary.",
    "max_grad_norm": "Put it first: `eqopt.Chain(eqopt.ClipByGlobalNorm(1.0), "
    "optimizer)`.",
    "maximize": "Change the sign of the gradients: `eqopt.Chain(eqopt.Scale(-1.0), "
    "optimizer)`.",
    "momentum": "Put it first: `eqopt.Chain(eqopt.Trace(0.9), optimizer)`.",
    "weight_decay": "Use an optimizer that has it, such as `eqopt.AdamW`, or put it "
    "first: `eqopt.Chain(eqopt.AddDecayedWeights(1e-4), optimizer)`.",
}


def unknown_argument(name: str, names: Collection[str]) -> str:
    """Returns the advice for an argument `name`, if a class has the arguments `names`."""
    meant = ARGUMENTS.get(name, ())
    for x in meant:
        if x in names:
            return f"It is called `{x}` here."
    for x in (name, *meant):
        if x in INSTEAD:
            return INSTEAD[x]
    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return f"Did you mean `{close[0]}`?"
    return f"Its arguments are {', '.join(f'`{x}`' for x in names) or 'none'}."


def missing(package: str, name: str) -> str:
    """The message if `package` has no attribute `name`."""
    message = f"module {package!r} has no attribute {name!r}"
    if name.startswith("__"):
        return message
    found, is_sure = meant(package.partition(".")[2], name)
    listed = " or ".join(f"`eqopt.{x}`" for x in found)
    advice = f"It is {listed}." if is_sure else f"Did you mean {listed}?"
    advice = GONE.get(name) or (found and advice)
    return f"{message}. {advice}" if advice else message


# What the names of functions in Optax begin or end with.
_AFFIXES = re.compile("^(tree|projection)_|_schedules?$")


@functools.cache
def meant(room: str, name: str) -> tuple[list[str], bool]:
    """The public names that may be meant, and whether they are certain.

    Of several, only those in the room count, or in the room that the name begins with.
    """
    if name in RENAMED:
        return [RENAMED[name]], True
    plain = lambda name: name.replace("_", "").lower()
    public = {}
    for x in public_names():
        public.setdefault(plain(x.rpartition(".")[2]), []).append(x)
    same = public.get(plain(name)) or public.get(plain(_AFFIXES.sub("", name)), [])
    close = difflib.get_close_matches(plain(name), public, n=3, cutoff=0.7)
    found = same or [x for spelling in close for x in public[spelling]]
    rooms = room, name.partition("_")[0]
    here = [x for x in found if x.rpartition(".")[0] in rooms]
    return (here or found)[:3], bool(same)


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
    return tuple(names)
