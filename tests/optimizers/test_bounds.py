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
    name: bounds
    for bounds, names in {
        "0, 1, ...": """
            anneal_steps average_from decay_offset max_precond_dim max_size
            min_dim_size_to_factor warmup_steps
        """,
        "[0, 1)": """
            b1 b2 b3 beta decay ef_decay gamma1 gamma2 gamma3 graft_b2 momentum
            polyak_beta preconditioner_lr rho shampoo_beta
        """,
        "(0, inf)": """
            base_width batch_size clipping_threshold estim_lr0 init_estim_sq_dist
            max_abs max_norm max_rms max_step_size
        """,
        "1, 2, ...": """
            block_size max_linesearch_steps max_skew memory_size ns_steps
            power_steps pp_iterations precondition_frequency rank reset_every
            start_preconditioning_step steps total_steps update_interval
            update_proj_gap
        """,
        "[0, inf)": """
            clip_threshold consistent_rms damping delta eps eps_confidence
            eps_root eta exponent floor gamma graft_eps initial_accumulator_value
            initial_scale inward l2_norm_clip learning_rate max_learning_rate
            min_norm min_step_size momentum_decay noise_multiplier outward radius
            scaling weight_lr_power weight_power
        """,
        "[0, 1]": "dampening eta_min pp_beta",
        "(0, 1)": "eta_minus max_beta",
        "(1, inf)": "eta_plus",
        "(0, 1]": "clamp fraction",
        "[1, inf)": "max_growth",
        "[4, inf)": "threshold",
    }.items()
    for name in names.split()
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
