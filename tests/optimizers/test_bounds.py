"""The bounds that the types of all hyperparameters declare.

`tests/laws/test_bounds.py` checks that numbers outside are rejected.
"""

import dataclasses
import math

import pytest

from eqopt._arguments.annotations import rules
from eqopt._types import AtLeast

from ..laws.registry import concrete_transformations


# By the name of the argument, wherever a class is no exception.
BOUNDS = {
    "anneal_steps": "0, 1, ...",
    "average_from": "0, 1, ...",
    "b1": "[0, 1)",
    "b2": "[0, 1)",
    "b3": "[0, 1)",
    "base_width": "(0, inf)",
    "batch_size": "(0, inf)",
    "beta": "[0, 1)",
    "block_size": "1, 2, ...",
    "clip_threshold": "[0, inf)",
    "clipping_threshold": "(0, inf)",
    "consistent_rms": "[0, inf)",
    "dampening": "[0, 1]",
    "damping": "[0, inf)",
    "decay": "[0, 1)",
    "decay_offset": "0, 1, ...",
    "delta": "[0, inf)",
    "ef_decay": "[0, 1)",
    "eps": "[0, inf)",
    "eps_confidence": "[0, inf)",
    "eps_root": "[0, inf)",
    "estim_lr0": "(0, inf)",
    "eta": "[0, inf)",
    "eta_min": "[0, 1]",
    "eta_minus": "(0, 1)",
    "eta_plus": "(1, inf)",
    "exponent": "[0, inf)",
    "floor": "[0, inf)",
    "fraction": "(0, 1]",
    "gamma": "[0, inf)",
    "gamma1": "[0, 1)",
    "gamma2": "[0, 1)",
    "gamma3": "[0, 1)",
    "graft_b2": "[0, 1)",
    "graft_eps": "[0, inf)",
    "init_estim_sq_dist": "(0, inf)",
    "initial_accumulator_value": "[0, inf)",
    "initial_scale": "[0, inf)",
    "inward": "[0, inf)",
    "l2_norm_clip": "[0, inf)",
    "learning_rate": "[0, inf)",
    "max_abs": "(0, inf)",
    "max_beta": "(0, 1)",
    "max_growth": "[1, inf)",
    "max_learning_rate": "[0, inf)",
    "max_linesearch_steps": "1, 2, ...",
    "max_norm": "(0, inf)",
    "max_precond_dim": "0, 1, ...",
    "max_rms": "(0, inf)",
    "max_size": "0, 1, ...",
    "max_skew": "1, 2, ...",
    "max_step_size": "(0, inf)",
    "memory_size": "1, 2, ...",
    "min_dim_size_to_factor": "0, 1, ...",
    "min_norm": "[0, inf)",
    "min_step_size": "[0, inf)",
    "momentum": "[0, 1)",
    "momentum_decay": "[0, inf)",
    "noise_multiplier": "[0, inf)",
    "ns_steps": "1, 2, ...",
    "outward": "[0, inf)",
    "polyak_beta": "[0, 1)",
    "power_steps": "1, 2, ...",
    "pp_beta": "[0, 1]",
    "pp_iterations": "1, 2, ...",
    "precondition_frequency": "1, 2, ...",
    "preconditioner_lr": "[0, 1)",
    "radius": "[0, inf)",
    "rank": "1, 2, ...",
    "reset_every": "1, 2, ...",
    "rho": "[0, 1)",
    "scaling": "[0, inf)",
    "shampoo_beta": "[0, 1)",
    "start_preconditioning_step": "1, 2, ...",
    "steps": "1, 2, ...",
    "threshold": "[4, inf)",
    "total_steps": "1, 2, ...",
    "update_interval": "1, 2, ...",
    "update_proj_gap": "1, 2, ...",
    "warmup_steps": "0, 1, ...",
    "weight_lr_power": "[0, inf)",
    "weight_power": "[0, inf)",
}
# Other bounds of these classes; `None` for no bounds.
EXCEPTIONS = {
    ("alpha", "(0, inf)"): ["COCOB", "ScaleByCOCOB"],
    ("b1", "(0, 1]"): ["ScheduleFreeAdamW", "ScheduleFreeSGD"],
    ("b2", "(0, 1]"): ["ScaleBySM3"],
    ("b2", "[0, 1]"): ["KLShampoo", "ScaleByShampoo", "Shampoo"],
    ("b3", "[0, 1]"): ["Prodigy"],
    ("beta", "(0, 1)"): ["ScheduleFreePlus"],
    ("beta", None): ["OptimisticGradientDescent", "ScaleByOptimisticGradient"],
    ("consistent_rms", None): ["Muon"],
    ("eps", "(0, inf)"): ["Adadelta", "ScaleByAdadelta"],
    ("gamma", None): ["NoisySGD"],
    ("momentum", None): ["DPSGD", "LARS", "RMSprop", "SGD"],
    ("radius", "(0, inf)"): ["Hyperball", "KeepNorm"],
    ("scale", "[0, inf)"): ["APOLLO", "ScaleByAPOLLO"],
    ("weight_decay", "[0, inf)"): ["MoMo", "MoMoAdam", "Muown", "ScaleByMuown"],
}
CLASSES = [
    cls
    for cls in sorted(concrete_transformations(), key=lambda cls: cls.__name__)
    if cls.__module__.startswith("eqopt._optimizers.")
]


def written(bounds):
    if bounds is None:
        return None
    if isinstance(bounds, AtLeast):
        return f"{bounds.low}, {bounds.low + 1}, ..."
    left = "[" if bounds.includes_low and bounds.low > -math.inf else "("
    right = "]" if bounds.includes_high and bounds.high < math.inf else ")"
    return f"{left}{bounds.low}, {bounds.high}{right}"


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_bounds(cls):
    fields = [field.name for field in dataclasses.fields(cls)]
    expected = {name: BOUNDS.get(name) for name in fields}
    for (name, bounds), names in EXCEPTIONS.items():
        if cls.__name__ in names:
            expected[name] = bounds
    found = {name: rule.bounds for name, rule in rules(cls).items()}
    assert {name: written(found.get(name)) for name in fields} == expected
