"""The laws of `eqopt.testing`, over every transformation.

Each row has one trial for all laws, whose programs are traced once and `interpreted`. A
sample of the rows compiles the program of the law about donation, with either release.
"""

import functools
import zlib

import jax.numpy as jnp
import numpy as np
import pytest

import eqopt
from eqopt import testing
from eqopt.testing._check import check
from eqopt.testing._laws import numbers, slopes_of
from eqopt.testing._trial import Trial

from .registry import CLASSES, PARTS, REGISTRY, TELLING
from .subjects import params_of


# The quick set tests these laws on other rows, or on none: they take long, or usually
# fail only if another law fails, too.
QUICK = {
    "derivatives": {"EMA", "Prodigy", "ScaleByMuon"},
    "huge_and_tiny_gradients": {
        *("AdaClipGN", "Adafactor", "Mechanic(SGD)", "ScaleByAdam", "ScaleByPSGDKron")
    },
    "half_precision": {"ScaleByAdam", "ScaleByMuon", "ParamEMA(SGD)"},
    "untrained": {"ScaleByAdam"},
    "effects": {"EMA", "ScaleByAdam"},
    "zero_gradients": {"ScaleByAdam"},
    "partly_trained": {"ScaleByAdam"},
    "inputs": (),
    "jit": (),
    "populations": (),
    "scan": (),
    "vmap": (),
}


# A recipe is a chain of parts, which obey the other laws.
OF_RECIPES = {"descent", "effects", "hyperparameters", "state"}

# Tested with values other than the defaults, which may turn parts of a method off.
OF_HYPERPARAMETERS = {"effects", "hyperparameters", "populations", "derivatives"}


# What has no effect in the few steps of the law `effects`: an argument of another mode,
# a bound that is not reached, or what a row of this kind never uses.
MODE, BOUND = "of another mode of this method", "a bound that these steps do not reach"
RANDOM = "these gradients are random, and do not depend on the parameters"
MASK = "of the part for matrices, whose mask excludes what is trained"
EXTRA = "only for other parts of a chain, which this row does not have"
WITHOUT_EFFECT = {
    **dict.fromkeys(
        ("ScaleByLion", "ScaleByLion(refined)", "Cautious(ScaleByLion)"),
        f"`smooth_beta`: {MODE}",
    ),
    "Aurora": f"`pp_beta`: {MODE}",
    "MARS(lion)": f"`b2`: {MODE}",
    "RadialBrake": f"`inward`: {MODE}",
    "ScaleByLMO": f"`eps`: {MODE}",
    "ScaleByShampoo(KL)": f"`graft_b2`: {MODE}",
    "ScaleByShampoo(one-sided, staggered)": f"`graft_b2`: {MODE}",
    "SinkGD": f"`width_exponent`: {MODE}",
    **dict.fromkeys(("NAMO", "ScaleByNAMO"), f"`clamp`: {MODE}"),
    **dict.fromkeys(
        ("AdamW(cautious)", "AdamW(independent)", "AdamW(squared)"),
        f"`weight_decay.max_learning_rate`: {MODE}",
    ),
    "AdaClipGN": f"`eta_min`: {BOUND}",
    "CompressedMean(PowerSGD)": "`decay`: of an error that is zero with a single worker",
    "DynamicLossScale(SGD)": "`backoff_factor`: all gradients are finite",
    "DynamicLossScale(nested)": "`backoff_factor`: all gradients are finite",
    "DynamicLossScale(SkipStep(MultiSteps))": f"`growth_factor`: {BOUND}",
    "PolyakSGD(schedule, sps+, no cap)": f"`max_learning_rate`: {BOUND}",
    "Prodigy": f"`grad_sum`: {BOUND}",
    "Prodigy(schedule, mask, float32 moments)": f"`grad_sum`: {BOUND}",
    "ScaleByRAdam": f"`nu`: {BOUND}",
    "ScheduleFreePlus(schedules, mask, float32)": f"`max_beta`: {BOUND}",
    "MultiSteps(schedule, sum, skip)": "`mu`: all mini-steps after one step are skipped",
    "ScheduleFree(schedule, float32)": f"`mu`: {BOUND}",
    **dict.fromkeys(
        ("LBFGS", "ProjectedLBFGS", "ScaleByBacktrackingLinesearch(store_grad)"), RANDOM
    ),
    **dict.fromkeys(
        ("ScaleByZoomLinesearch", "ScaleByZoomLinesearch(one, no approximation)"),
        RANDOM,
    ),
    **dict.fromkeys(("SAM(SGD)", "SAM(nested)", "SAM(Adam climbs)"), RANDOM),
    **dict.fromkeys(
        ("Flatten(nested)", "SelectiveTransform(nested)", "all wrappers"), MASK
    ),
    "Monitor": "it only measures",
    "PerElementMeanAndSumSqDiffGrads": EXTRA,
    **dict.fromkeys(
        ("add_mean_variance_to_opt(1)", "add_mean_variance_to_opt(2)"), EXTRA
    ),
    "SWA(ParamEMA, float32)": "the average of the inner wrapper: the outer one counts",
}
NOT_DOWNHILL = {
    "AddDecayedWeights(cautious, corrected)": "its learning rate is of the decay alone",
    "Masked(SGD)": "the updates of all other leaves are their gradients",
    "Masked(nested)": "the updates of all other leaves are their gradients",
    "SAM(opaque)": "its gradients are those of another function",
    "ScaleByLearningRate(schedule)": "with `flip_sign=False`",
    "ScaleByMuown": "its learning rate is of the norms of the weights alone",
    "ScaleByRprop": "its updates are step sizes with the sign of the gradient",
}


@functools.lru_cache(maxsize=2)
def trial_of(row, is_default):
    return Trial(row() if is_default else row(**row.data), params_of())


CASES = [
    pytest.param(
        row,
        law,
        id=f"{row.name}-{law}",
        marks=[] if row.name in QUICK.get(law, TELLING) else [pytest.mark.slow],
    )
    for row in REGISTRY
    for law in testing.LAWS
    if row.name in {*(CLASSES if law in OF_RECIPES else PARTS), *QUICK.get(law, ())}
    and law not in row.exempt
    and row.name
    not in {"effects": WITHOUT_EFFECT, "descent": NOT_DOWNHILL}.get(law, ())
]


# Compiling takes about a tenth of a second. The remainders by 6 choose the release.
DONATED = {row.name for row in REGISTRY if zlib.crc32(row.name.encode()) % 12 in (0, 1)}


@pytest.mark.parametrize(("row", "law"), CASES)
@pytest.mark.usefixtures("uncompiled")
@pytest.mark.costly
def test_shipped_laws(row, law, request):
    if law == "donation" and row.name not in DONATED | TELLING:
        request.getfixturevalue("donated_without_compiling")
    is_default = law not in OF_HYPERPARAMETERS or not row.data
    check(trial_of(row, is_default), [law])


def test_all_hyperparameters_are_found():
    missing = {}
    for row in REGISTRY:
        found = {abs(float(x)) for x in numbers(row(**row.data)).values()}
        names = {k for k, v in row.data.items() if abs(np.float32(v)) not in found}
        if names:
            missing[row.name] = names
    assert not missing


@pytest.mark.usefixtures("uncompiled")
def test_the_learning_rate_has_a_derivative():
    for opt in (eqopt.SGD(0.1), eqopt.AdamW(0.1), eqopt.Prodigy(0.5)):
        trial = Trial(opt, params_of())
        slopes, _ = slopes_of(trial)((numbers(opt), jnp.ones(())))
        assert slopes[".learning_rate"] != 0
