"""Training that begins in torch and continues in eqopt, with the same numbers."""

import jax.numpy as jnp
import numpy as np
import pytest

from eqopt.interop.torch import from_torch, params_from_torch, state_from_torch

from ..laws.subjects import arrays, assert_equal, avals
from .torch_steps import assert_same, eqopt_steps, tensors, torch_steps


torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("float64")


SHAPES = [(3, 4), (4,), (), (2, 3, 2)]
MATRICES = [(3, 4), (5, 2)]


DECAY = {"weight_decay": 0.3}
APART = {**DECAY, "decoupled_weight_decay": True}
CASES = {
    "sgd": ("SGD", {}),
    "momentum": ("SGD", {"lr": 0.1, "momentum": 0.8, **DECAY}),
    "nesterov": ("SGD", {"lr": 0.1, "momentum": 0.8, "nesterov": True}),
    "dampening": ("SGD", {"lr": 0.1, "momentum": 0.8, "dampening": 0.3, **DECAY}),
    "all dampened": ("SGD", {"lr": 0.1, "momentum": 0.8, "dampening": 1.0}),
    "maximize": ("SGD", {"lr": 0.1, "momentum": 0.8, "maximize": True, **DECAY}),
    "adam": ("Adam", {"betas": (0.7, 0.9), "eps": 0.1}),
    "adam, decay": ("Adam", DECAY),
    "adam, decoupled": ("Adam", APART),
    "adam, amsgrad": ("Adam", {"amsgrad": True, "betas": (0.5, 0.6), "eps": 0.1}),
    "adam, maximize": ("Adam", {"maximize": True, **DECAY}),
    "adamw": ("AdamW", {}),
    "adamw, amsgrad": ("AdamW", {"amsgrad": True, "eps": 0.1, **DECAY}),
    "nadam": ("NAdam", {}),
    "nadam, decay": ("NAdam", {"betas": (0.5, 0.9), "momentum_decay": 0.5, **DECAY}),
    "radam": ("RAdam", {}),
    "radam, decay": ("RAdam", {"betas": (0.7, 0.8), "eps": 0.1, **DECAY}),
    "radam, decoupled": ("RAdam", {"betas": (0.7, 0.8), "eps": 0.1, **APART}),
    "adamax": ("Adamax", {"eps": 0.1, **DECAY}),
    "adagrad, all": (
        "Adagrad",
        {"lr_decay": 0.2, "initial_accumulator_value": 0.3, "eps": 0.1, **DECAY},
    ),
    "adadelta": ("Adadelta", {"lr": 0.5, "rho": 0.8, "eps": 1e-3, **DECAY}),
    "rmsprop": ("RMSprop", {"eps": 0.1, **DECAY}),
    "rmsprop, all": ("RMSprop", {"momentum": 0.8, "centered": True, "eps": 0.1}),
    "rprop": ("Rprop", {"etas": (0.3, 1.7), "step_sizes": (1e-3, 0.05)}),
    "rprop, maximize": ("Rprop", {"maximize": True}),
    "adafactor, all": (
        "Adafactor",
        {"lr": 0.7, "beta2_decay": -0.5, "eps": (None, 0.4), "d": 2.0, **DECAY},
    ),
    "asgd": ("ASGD", {"lambd": 0.2, **DECAY}),
    "asgd, averaging": ("ASGD", {"lambd": 0.2, "t0": 2.0}),
    "asgd, averaging later": ("ASGD", {"lambd": 0.2, "t0": 8.0}),
    "muon": ("Muon", {}),
    "muon, all": (
        "Muon",
        {
            "nesterov": False,
            "adjust_lr_fn": "match_rms_adamw",
            "ns_steps": 3,
            "ns_coefficients": (2.0, -1.5, 0.5),
            "lr": 0.1,
        },
    ),
}
QUICK = {"adamw", "dampening", "rprop"}


@pytest.mark.parametrize(
    "name",
    [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CASES],
)
def test_training_continues_where_torch_stopped(name, monkeypatch):
    # Muon iterates in it, which rounds to three digits.
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda x: x.clone())
    kind, options = CASES[name]
    parameters = tensors(MATRICES if kind == "Muon" else SHAPES)
    optimizer = getattr(torch.optim, kind)(parameters, **options)
    params = params_from_torch(parameters, [jnp.zeros(p.shape) for p in parameters])
    opt = from_torch(optimizer)
    state = opt.init(params)
    assert_equal(state_from_torch(opt, optimizer.state_dict(), params, count=0), state)

    torch_steps(optimizer, parameters, range(5))
    params, state = eqopt_steps(opt, params, state, range(5))
    assert_same(params, parameters)

    # The state is the one that eqopt has after the same steps.
    state_dict = optimizer.state_dict()
    moved = params_from_torch(parameters, params)
    converted = state_from_torch(opt, state_dict, moved, count=5)
    assert avals(converted) == avals(state)
    for a, b in zip(arrays(converted), arrays(state), strict=True):
        if kind != "ASGD":  # torch hides the average until it begins
            np.testing.assert_allclose(a, b, 1e-6, 1e-12)

    torch_steps(optimizer, parameters, range(5, 15))
    params, converted = eqopt_steps(opt, moved, converted, range(5, 15))
    assert_same(params, parameters)
    if kind == "ASGD":
        averages = [optimizer.state[p]["ax"] for p in parameters]
        assert_same(opt.eval_params(converted, params), averages)
