"""The steps that are compiled."""

import functools
import itertools
from typing import Any

from benchmarks.accelerators.cases import CASES, SKIPPED, Case

import eqopt
from eqopt import storage

from ..laws.registry import REGISTRY
from ..laws.row import Adapter, PerExample
from ..methods import BY_FAMILY


PLATFORMS = "h100", "tpu"

# With gradients and a state, these take more than the 128 MB of a TPU's fast memory.
# Arrays that fit into it would move no bytes. Few shapes, because each one is compiled.
SHAPES = {"emb": (8192, 1024), "q": (1024, 1024), "k": (1024, 1024), "n": (1024,)}
ONE_MATRIX = {"w": (8192, 8192)}

_OF_ALL = (
    *("SGD", "Adam", "AdamW", "clip + AdamW", "Lion", "ADOPT", "Rprop", "Prodigy"),
    *("LAMB", "Adafactor", "AdamP", "ScheduleFreeAdamW", "Muon", "NorMuon", "NAMO"),
    *("SOAP", "Hyperball", "ApplyIfFinite", "MultiSteps", "Lookahead", "ParamEMA"),
    *("state: 8 bits", "state: 4 bits", "state: float8", "state: bfloat16"),
    "state: 8 bits, Lion",
)
ROWS = {
    "momentum": Case(lambda: eqopt.SGD(0.1, 0.9)),
    **{name: CASES[name] for name in _OF_ALL},
    "SODA": Case(lambda: eqopt.SODA(eqopt.Adam(1e-3))),
    "three averages": Case(
        lambda: functools.reduce(eqopt.ParamEMA, (0.9, 0.99, 0.999), eqopt.AdamW(1e-3))
    ),
    "Muon, lm": CASES["Muon"],
    "state: bfloat16 at random, lm": CASES["state: bfloat16 at random"],
}
# Rows with the parameters of a model of the benchmarks: enough matrices for many batches,
# and enough leaves of one shape for kernels of several leaves.
OF_MODEL = {"Muon, lm": "lm", "state: bfloat16 at random, lm": "lm"}
# Wrappers around AdamW, of which two equal matrices or only one is trained, with each
# state as it is, in bfloat16 or in 8 bits; only for an H100.
_WRAPPERS = {
    "AdamW": lambda opt: opt,
    "clip": lambda opt: eqopt.Chain(eqopt.ClipByGlobalNorm(1.0), opt),
    "ApplyIfFinite": lambda opt: eqopt.ApplyIfFinite(opt, 3),
    "MultiSteps": lambda opt: eqopt.MultiSteps(opt, 8),
    "Lookahead": lambda opt: eqopt.Lookahead(opt, 6, 0.5),
    "ParamEMA": eqopt.ParamEMA,
}
_MASKS = {
    "all": lambda opt: opt,
    "half": lambda opt: eqopt.SelectiveTransform(
        opt, freeze_mask={"v": True, "w": False}
    ),
}
_STORAGES = {
    "float32": lambda opt: opt,
    "bfloat16": lambda opt: eqopt.StoreState(opt, storage.Cast()),
    "8 bits": lambda opt: eqopt.StoreState(opt, storage.BlockwiseQuantized()),
}
TWO_MATRICES = {"v": (2048, 2048), "w": (2048, 2048)}


def _nested(wrap, mask, store) -> Case:
    return Case(lambda: store(wrap(mask(eqopt.AdamW(1e-3)))))


NESTED = {
    " x ".join(names): _nested(
        _WRAPPERS[names[0]], _MASKS[names[1]], _STORAGES[names[2]]
    )
    for names in itertools.product(_WRAPPERS, _MASKS, _STORAGES)
}


def rows_of(platform: str) -> list[str]:
    """The rows that compile for a platform in seconds."""
    rows = [name for name in ROWS if name not in SKIPPED.get(platform, ())]
    return [*rows, *NESTED] if platform == "h100" else rows


# Rows of the registry that treat each leaf separately, some of them after a norm of all
# leaves. (Products of matrices decide what methods for matrices cost.)
_OF_METHODS = {
    row.name
    for family, methods in BY_FAMILY.items()
    if family not in ("matrix", "second_order")
    for method in methods
    for row in method.laws
}


def _inside(opt: Any) -> Any:
    """What gets its extra arguments from a row: a step here has a loss itself."""
    return opt.inner if isinstance(opt, Adapter) else opt


LEAFWISE = {
    row.name: Case(lambda row=row: _inside(row()))
    for row in REGISTRY
    if row.name in _OF_METHODS or isinstance(row(), eqopt.AbstractLeafwise)
    if not isinstance(row(), PerExample)
}

# What these rows move on an H100 and on a TPU, in arrays of the size of the parameters,
# beyond each argument and each result once; and why. The name of a row may be without
# what it has in parentheses.
MORE_MOVED = {
    "a norm of all gradients, or of an array, is needed before the step": {
        **dict.fromkeys(("LAMB", "ScheduleFreePlus"), (3, 3)),
        **dict.fromkeys(("ScaleByStableAdam", "StableAdamW", "StableSPAM"), (2, 2)),
        **dict.fromkeys(("AdaClipGN", "Fromage", "LARS", "ScaleByTrustRatio"), (2, 2)),
        **dict.fromkeys(("DoG", "DoWG", "Prodigy", "NovoGrad", "PolyakSGD"), (1, 1)),
        **dict.fromkeys(("ScaleByNovoGrad", "ScaleByPolyak"), (1, 1)),
        **dict.fromkeys(("ScaleByParamBlockNorm", "ScaleByParamBlockRMS"), (1, 1)),
        **dict.fromkeys(("ClipByBlockRMS", "ScaleByDistanceOverGradients"), (1, 1)),
        "CorrectByMARS": (3, 2),
        "DAdaptAdamW": (3, 0),
        "MoMo": (3, 2),
        "MoMoAdam": (4, 3),
    },
    "one entry of a slot is replaced after all of it is read": {
        "AddCorrelatedNoise": (2, 3),
    },
    "means or norms of rows or columns are needed before the step": {
        "Adafactor": (4, 3),
        "Adafactor(not factored)": (0, 0),
        **dict.fromkeys(("AdamMini", "ScaleByAdamMini"), (1, 1)),
        **dict.fromkeys(("AdamP", "ScaleByAdamP"), (5, 3)),
        "AdaptiveGradClip": (2, 2),
        "AdaptiveGradClip(axis)": (0, 0),
        "CAME": (5, 2),
        "Centralize": (0, 1),
        "ScaleByCAME": (6, 3),
        "ScaleByFactoredRMS": (2, 1),
        "SGDP": (5, 3),
        "ScaleBySGDP": (4, 2),
        **dict.fromkeys(("SM3", "ScaleBySM3"), (1, 0)),
    },
    "the gradient is stored as it is, which XLA does in another kernel": {
        **dict.fromkeys(("Adan", "ScaleByAdan"), (1, 0)),
        "OptimisticAdam": (2, 0),
        **dict.fromkeys(
            ("OptimisticGradientDescent", "ScaleByOptimisticGradient"), (1, 0)
        ),
    },
}


def more_moved(name: str, platform: str) -> int:
    """What a row moves beyond its limit, in arrays of the size of the parameters."""
    more = {row: x for rows in MORE_MOVED.values() for row, x in rows.items()}
    base = name.partition("(")[0]
    return more.get(name, more.get(base, (0, 0)))[PLATFORMS.index(platform)]
