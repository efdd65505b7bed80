"""The laws of `eqopt.testing`, over every transformation in the registry.

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
from eqopt.testing._hyperparameters import numbers, slopes_of
from eqopt.testing._trial import Trial

from .registry import REGISTRY, TELLING
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
    "zero_gradients": {"ScaleByAdam"},
    "partly_trained": {"ScaleByAdam"},
    "inputs": (),
    "jit": (),
    "populations": (),
    "scan": (),
    "vmap": (),
}


# Tested with values other than the defaults, which may turn parts of a method off.
OF_HYPERPARAMETERS = {"hyperparameters", "populations", "derivatives"}


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
    if law not in row.exempt
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
