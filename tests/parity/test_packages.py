"""Against packages for torch, for as long as they run the same equations.

Apollo-torch, adamp and adam-mini are their authors' code. In pytorch_optimizer 4.1.0, the
optimizers below follow the code of the authors if epsilon is tiny. Muon is compared with
`torch.optim` in `tests/interop`.
"""

import functools
import importlib
import importlib.util
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt

from .matrices import NUMBERS


torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow


def apollo_torch(monkeypatch):
    """The file of the optimizer alone.

    The rest of its package needs transformers and bitsandbytes. This file needs a
    function of the former, which checks the version of torch.
    """
    spec = importlib.util.find_spec("apollo_torch")
    if spec is None:
        pytest.skip("apollo-torch is not installed")
    package, versions = types.ModuleType("apollo_torch"), types.ModuleType("versions")
    package.__path__ = list(spec.submodule_search_locations or ())
    versions.require_version = lambda requirement: None
    monkeypatch.setitem(sys.modules, "apollo_torch", package)
    monkeypatch.setitem(sys.modules, "transformers", types.ModuleType("transformers"))
    monkeypatch.setitem(sys.modules, "transformers.utils", types.ModuleType("utils"))
    monkeypatch.setitem(sys.modules, "transformers.utils.versions", versions)
    return importlib.import_module("apollo_torch.apollo").AdamW


def adamp(name):
    return lambda monkeypatch: getattr(pytest.importorskip("adamp"), name)


def adam_mini(monkeypatch):
    """Its constructor takes names with the parameters, by which it chooses the blocks."""
    module = pytest.importorskip("adam_mini")
    return lambda groups, **options: module.Adam_mini(
        [*zip(BLOCKS, groups[0]["params"], strict=True)], **options, verbose=False
    )


def pytorch_optimizer(name):
    def load(monkeypatch):
        package = pytest.importorskip("pytorch_optimizer")
        scion = importlib.import_module("pytorch_optimizer.optimizer.scion")
        iteration = "zero_power_via_newton_schulz_5"
        # In bfloat16, only three digits would agree.
        exact = functools.partial(getattr(scion, iteration), dtype=torch.float64)
        monkeypatch.setattr(scion, iteration, exact)
        return getattr(package, name)

    return load


def optimi(name):
    return lambda monkeypatch: getattr(pytest.importorskip("optimi"), name)


@pytest.fixture(autouse=True)
def decompositions_of_numpy(monkeypatch):
    """In float64, with LAPACK, so that vectors have the same signs as in JAX."""

    def decomposition(function):
        def decompose(x, **options):
            parts = function(x.detach().double().numpy(), **options)
            return tuple(torch.tensor(part) for part in parts)

        return decompose

    def svd(x, full_matrices):
        # eqopt takes the left singular vectors of the wide one.
        if x.shape[0] < x.shape[1]:
            return np.linalg.svd(x, full_matrices)
        u, s, vh = np.linalg.svd(x.T, full_matrices)
        return vh.T, s, u.T

    for name in ("qr", "eigh"):
        function = decomposition(getattr(np.linalg, name))
        monkeypatch.setattr(torch.linalg, name, function)
    monkeypatch.setattr(torch.linalg, "svd", decomposition(svd))
    monkeypatch.setattr(torch.Tensor, "float", lambda x: x)


class Package(NamedTuple):
    """The same optimizer in eqopt and in a package.

    - `ours`: it in eqopt.
    - `load`: gives its class in the package, given `monkeypatch`.
    - `options`: its arguments there; `group`: options of its group of parameters.
    - `shapes`: of the parameters.
    - `tol`: relative and absolute, in float64.
    """

    ours: Any
    load: Callable[[Any], Any]
    options: dict[str, Any]
    group: Mapping[str, Any] = types.MappingProxyType({})
    shapes: tuple[tuple[int, ...], ...] = ((3, 6), (6, 4), (4, 4))
    tol: float = 1e-9


RATE = 0.1
BETAS = {"b1": 0.8, "b2": 0.95}
THEIRS = {"lr": RATE, "betas": (0.8, 0.95), "eps": 1e-30, "weight_decay": 0.3}
OURS = {"weight_dimension_numbers": NUMBERS}
PROJECTION = {"eps": 1e-30, "weight_decay": 0.3, "delta": 0.3, "wd_ratio": 0.2}
# One subspace for all steps: the signs of new singular vectors are arbitrary, and the
# moments are not turned with them.
APOLLO = {"rank": 2, "scale": 3.0, "update_proj_gap": 40, "proj": "svd"}
SGDP = {"momentum": 0.8, "dampening": 0.4, "nesterov": True, **PROJECTION}
# A model of 3 heads: the names say which blocks the authors' code makes.
BLOCKS = {
    "embed.weight": ((7, 6), eqopt.groups.BlockAxes(-1)),
    "query.weight": ((6, 6), eqopt.groups.BlockAxes((0, 1), 3)),
    "value.weight": ((6, 6), eqopt.groups.BlockAxes(-1)),
    "mlp.weight": ((4, 6), eqopt.groups.BlockAxes(-1)),
    "mlp.bias": ((4,), eqopt.groups.BlockAxes(())),
    "norm.weight": ((6,), eqopt.groups.BlockAxes()),
}
SOAP = {"shampoo_beta": 0.7, "precondition_frequency": 3, "eps": 1e-3}


def apollo(scale_type, scale_front):
    ours = {**APOLLO, **BETAS, **OURS, "eps": 1e-3}
    return Package(
        eqopt.APOLLO(RATE, scale_type=scale_type, scale_front=scale_front, **ours),
        apollo_torch,
        {"lr": RATE, "betas": (0.8, 0.95), "eps": 1e-3, "scale_front": scale_front},
        {**APOLLO, "scale_type": scale_type, "proj_type": "std"},
    )


def scion(norm, norm_type, constraint, **kwargs):
    ours = {"beta": 0.8, "weight_decay": float(constraint), "radius": 3.0, **OURS}
    return Package(
        eqopt.Scion(RATE, norm, **ours, at_least_one=kwargs.get("max_scale", False)),
        pytorch_optimizer("SCION"),
        {
            "lr": RATE,
            "momentum": 0.2,
            "constraint": constraint,
            "norm_type": norm_type,
            "norm_kwargs": kwargs,
            "scale": 3.0,
            "foreach": False,
        },
        # It bounds the norm that is a divisor, and eqopt adds to it.
        tol=1e-6,
    )


def soap(correct_bias):
    ours = {**SOAP, **BETAS, **OURS, "weight_decay": 0.0}
    return Package(
        eqopt.SOAP(RATE, correct_bias=correct_bias, **ours),
        pytorch_optimizer("SOAP"),
        {
            "lr": RATE,
            "betas": (0.8, 0.95),
            "weight_decay": 0.0,
            "correct_bias": correct_bias,
            **SOAP,
        },
        # After the first gradient, other shapes have factors without a single basis.
        shapes=((4, 4), (5, 5)),
        # Their QR decomposition is rounded to float32, and eqopt shifts the factors.
        tol=2e-5,
    )


CASES = {
    "APOLLO, channel": apollo("channel", False),
    "APOLLO, tensor, scaled in front": apollo("tensor", True),
    "Scion, spectral": scion("spectral", 2, True),
    "Scion, spectral, at least one": scion("spectral", 2, False, max_scale=True),
    "Scion, sign": scion("sign", 4, True),
    "SOAP": soap(True),
    "SOAP, biased": soap(False),
    # Their epsilon is divided by the correction of the bias, too.
    "MARS": Package(
        eqopt.MARS(RATE, **BETAS, eps=1e-30, gamma=0.1, weight_decay=0.3, **OURS),
        pytorch_optimizer("MARS"),
        {**THEIRS, "gamma": 0.1, "foreach": False},
    ),
    # It takes the decay off the new parameters.
    "LaProp": Package(
        eqopt.LaProp(RATE, **BETAS, eps=1e-30),
        pytorch_optimizer("LaProp"),
        {**THEIRS, "weight_decay": 0.0, "foreach": False},
    ),
    **{
        f"AdamP{', Nesterov' * nesterov}": Package(
            eqopt.AdamP(RATE, **BETAS, **PROJECTION, nesterov=nesterov, **OURS),
            adamp("AdamP"),
            {**THEIRS, "delta": 0.3, "wd_ratio": 0.2, "nesterov": nesterov},
        )
        for nesterov in (False, True)
    },
    "SGDP": Package(
        eqopt.SGDP(RATE / 10, **SGDP, **OURS), adamp("SGDP"), {"lr": RATE / 10, **SGDP}
    ),
    "AdamMini": Package(
        eqopt.AdamMini(
            RATE,
            **BETAS,
            eps=1e-3,
            weight_decay=0.3,
            mask=[True] * 4 + [False] * 2,
            block_axes=[axes for _, axes in BLOCKS.values()],
        ),
        adam_mini,
        {**THEIRS, "eps": 1e-3, "dim": 6, "n_heads": 3},
        shapes=tuple(shape for shape, _ in BLOCKS.values()),
    ),
    "CAME": Package(
        eqopt.CAME(RATE, 0.8, 0.95, 0.98, clipping_threshold=0.7, weight_decay=0.3),
        pytorch_optimizer("CAME"),
        {
            "lr": RATE,
            "betas": (0.8, 0.95, 0.98),
            "clip_threshold": 0.7,
            "weight_decay": 0.3,
            "foreach": False,
        },
    ),
    "StableAdamW": Package(
        eqopt.StableAdamW(RATE, **BETAS, eps=1e-3, weight_decay=0.3),
        optimi("StableAdamW"),
        {**THEIRS, "eps": 1e-3, "kahan_sum": False, "foreach": False, "triton": False},
    ),
    "AdamW, fully decoupled": Package(
        eqopt.AdamW(
            RATE,
            **BETAS,
            eps=1e-3,
            weight_decay=eqopt.AddDecayedWeights(
                9e-4, mode="fully_decoupled", max_learning_rate=2 * RATE
            ),
        ),
        optimi("AdamW"),
        {
            **THEIRS,
            "eps": 1e-3,
            "weight_decay": 9e-4,
            "decouple_lr": True,
            "max_lr": 2 * RATE,
            "foreach": False,
            "triton": False,
        },
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_trajectory(name, monkeypatch, x64):
    case = CASES[name]
    rng = np.random.default_rng(0)
    start = [rng.normal(size=shape) for shape in case.shapes]
    theirs = [torch.nn.Parameter(torch.tensor(p)) for p in start]
    group = [{"params": theirs, **case.group}]
    optimizer = case.load(monkeypatch)(group, **case.options)
    with x64():
        params = [jnp.asarray(p) for p in start]
        state = case.ours.init(params)
        step = jax.jit(lambda *args: case.ours.step(*args))  # its mask may be a list
        for _ in range(30):
            grads = [rng.normal(size=p.shape) for p in start]
            params, state = step([jnp.asarray(g) for g in grads], state, params)
            for p, g in zip(theirs, grads, strict=True):
                p.grad = torch.tensor(g)
            optimizer.step()
            for ours, reference in zip(params, theirs, strict=True):
                expected = reference.detach().numpy()
                np.testing.assert_allclose(ours, expected, case.tol, case.tol)
