"""The steps that are compiled."""

from benchmarks.accelerators.cases import CASES, SKIPPED, Case

import eqopt

from ..methods import BY_FAMILY


PLATFORMS = "h100", "tpu"

# With gradients and a state, these take more than the 128 MB of a TPU's fast memory.
# Arrays that fit into it would move no bytes. Few shapes, because each one is compiled.
SHAPES = {"emb": (8192, 1024), "q": (1024, 1024), "k": (1024, 1024), "n": (1024,)}
ONE_MATRIX = {"w": (4096, 4096)}

_OF_ALL = (
    *("SGD", "Adam", "AdamW", "clip + AdamW", "Lion", "ADOPT", "Rprop", "Prodigy"),
    *("LAMB", "Adafactor", "AdamP", "ScheduleFreeAdamW", "Muon", "NorMuon", "SOAP"),
    *("Hyperball", "ApplyIfFinite", "MultiSteps", "Lookahead", "ParamEMA"),
    *("state: 8 bits", "state: 4 bits", "state: float8", "state: bfloat16"),
    "state: 8 bits, Lion",
)
ROWS = {
    "momentum": Case(lambda: eqopt.SGD(0.1, 0.9)),
    **{name: CASES[name] for name in _OF_ALL},
    "Muon, lm": CASES["Muon"],
    "state: bfloat16 at random, lm": CASES["state: bfloat16 at random"],
}
# Rows with the parameters of a model of the benchmarks: enough matrices for many batches,
# and enough leaves of one shape for kernels of several leaves.
OF_MODEL = {"Muon, lm": "lm", "state: bfloat16 at random, lm": "lm"}


def rows_of(platform: str) -> list[str]:
    """The rows that compile for a platform in seconds."""
    return [name for name in ROWS if name not in SKIPPED.get(platform, ())]


# Methods that move more than each array once on an H100, and why. The tests compile
# them only if they are among the rows.
_NORM = "a norm of all gradients or of an array is needed before the step"
_MEAN = "means of rows or columns are needed before the step"
_COPY = "the gradient itself is stored, which XLA does in another kernel"
ABOVE_THE_LIMIT = {
    **dict.fromkeys(("OptimisticGradientDescent", "Adan", "OptimisticAdam"), _COPY),
    **dict.fromkeys(("AdamMini", "Adafactor", "CAME", "SM3"), _MEAN),
    **dict.fromkeys(("StableAdamW", "StableSPAM", "AdamP", "SGDP", "Fromage"), _NORM),
    **dict.fromkeys(("LAMB", "LARS", "NovoGrad", "PolyakSGD", "MoMo"), _NORM),
    **dict.fromkeys(("MoMoAdam", "DAdaptAdamW", "DoG", "DoWG", "Prodigy"), _NORM),
    "ScheduleFreePlus": _NORM,
}
# Without methods for matrices: products of matrices decide what those cost.
METHODS = [
    method.name
    for family, methods in BY_FAMILY.items()
    for method in methods
    if family != "matrix" and method.name in CASES
]
LEAFWISE = [name for name in METHODS if name not in ABOVE_THE_LIMIT]
