"""The bounds that the types of hyperparameters declare.

`tests/laws/test_bounds.py` checks that numbers outside are rejected.
"""

import collections
import dataclasses

from eqopt._arguments.annotations import rules

from ..laws.registry import concrete_transformations


# Arguments whose bounds are other ones than the same name has in most classes.
EXCEPTIONS = {
    "alpha": ["COCOB", "ScaleByCOCOB"],
    "b1": ["ScheduleFreeAdamW", "ScheduleFreeSGD"],
    "b2": ["ScaleBySM3", "ScaleByShampoo", "Shampoo"],
    "b3": ["Prodigy"],
    "beta": [
        "OptimisticGradientDescent",
        "ScaleByOptimisticGradient",
        "ScheduleFreePlus",
    ],
    "consistent_rms": ["Muon"],
    "eps": ["Adadelta", "KLShampoo", "ScaleByAdadelta"],
    "gamma": ["NoisySGD"],
    "momentum": ["DPSGD", "LARS", "RMSprop", "SGD"],
    "radius": ["Hyperball", "KeepNorm"],
    "scale": ["APOLLO", "ScaleByAPOLLO"],
    "weight_decay": ["MoMo", "MoMoAdam", "Muown", "ScaleByMuown"],
}


def test_arguments_of_one_name_have_the_same_bounds():
    found = collections.defaultdict(dict)
    for cls in concrete_transformations():
        if cls.__module__.startswith("eqopt._optimizers."):
            bounds = {name: rule.bounds for name, rule in rules(cls).items()}
            for field in dataclasses.fields(cls):
                found[field.name][cls.__name__] = str(bounds.get(field.name))
    exceptions = {}
    for name, by_class in found.items():
        counts = collections.Counter(by_class.values())
        usual = max(counts, key=lambda bounds: (counts[bounds], bounds))
        if others := [cls for cls, bounds in by_class.items() if bounds != usual]:
            exceptions[name] = sorted(others)
    assert exceptions == EXCEPTIONS
