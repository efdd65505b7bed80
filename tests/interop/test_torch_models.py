"""States of whole models from torch: groups, counts, and optimizers of the user."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt
from eqopt.interop.torch import from_torch, params_from_torch, state_from_torch

from ..laws.subjects import arrays, assert_equal, avals
from .torch_network import Network, model
from .torch_steps import (
    assert_same,
    eqopt_steps,
    equal,
    gradients,
    tensors,
    torch_steps,
)


torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("float64")


def params(tree):
    return eqx.filter(tree, eqx.is_inexact_array)


def test_nothing_is_shared_with_torch():
    """Torch changes tensors in place, but JAX's arrays must not change."""
    [x] = tensors([(1000,)])
    optimizer = torch.optim.Adam([x])
    torch_steps(optimizer, [x], range(1))
    moved = params_from_torch([x], jnp.zeros(1000))
    opt = from_torch(optimizer)
    state = state_from_torch(opt, optimizer.state_dict(), moved)
    before = np.array(moved), np.array(eqopt.tree.get(state, "mu"))
    torch_steps(optimizer, [x], range(1, 3))
    np.testing.assert_array_equal(moved, before[0])
    np.testing.assert_array_equal(eqopt.tree.get(state, "mu"), before[1])
    pointers = [x.unsafe_buffer_pointer() for x in arrays(state)]
    assert len({*pointers}) == len(pointers)  # all of it can be donated


@pytest.mark.parametrize(
    "kind", [pytest.param("Adafactor", marks=pytest.mark.slow), "NAdam"]
)
def test_groups_of_a_model(kind):
    """Groups in another order, with their own hyperparameters, and a frozen part."""
    network, start = Network(), model()
    groups = [
        {"params": [network.head.weight, network.head.bias], "lr": 0.1},
        {"params": [network.conv.bias, network.conv.weight], "weight_decay": 0.3},
    ]
    optimizer = getattr(torch.optim, kind)(groups, lr=0.01)
    trained = [x for group in groups for x in group["params"]]
    paths = [".head.weight", ".head.bias", ".conv.bias", ".conv.weight"]
    everything = [*trained, network.body.weight, network.body.bias]
    start = params_from_torch(
        everything, start, paths=[*paths, ".body.weight", ".body.bias"]
    )
    opt = from_torch(optimizer, start, paths=paths)
    assert opt.names == ("group_0", "group_1", "frozen")

    def step(i, current, state):
        new = gradients(i, [x.shape for x in trained])
        for p, g in zip(trained, new, strict=True):
            p.grad = torch.tensor(g)
        optimizer.step()
        grads = params_from_torch(map(torch.tensor, new), current, paths=paths)
        return opt.step(params(grads), state, current)

    current, state = start, opt.init(start)
    for i in range(4):
        current, state = step(i, current, state)
    converted = state_from_torch(opt, optimizer.state_dict(), current, paths=paths)
    assert avals(converted) == avals(state)
    for i in range(4, 8):
        current, converted = step(i, current, converted)
    assert_same([current.head.weight, current.head.bias], trained[:2])
    assert_same([current.conv.bias[:, 0], current.conv.weight], trained[2:])
    assert_equal(current.body, start.body)
    assert eqopt.tree.step_count(converted) == 8


def test_names_in_a_state():
    """That an optimizer has if it was made with `named_parameters()`."""
    a, b = tensors([(2,), (2,)])
    optimizer = torch.optim.Adam([("b", b), ("a", a)])
    torch_steps(optimizer, [a, b], range(2))
    start = {"a": jnp.zeros(2), "b": jnp.zeros(2)}
    opt = from_torch(optimizer, start)
    mu = eqopt.tree.get(state_from_torch(opt, optimizer.state_dict(), start), "mu")
    assert equal(mu["a"], optimizer.state[a]["exp_avg"])
    assert equal(mu["b"], optimizer.state[b]["exp_avg"])


def test_groups_with_their_own_counts():
    """One that was added later has taken fewer steps."""
    a, b = tensors([(2,), (3,)])
    optimizer = torch.optim.Adam([a], lr=0.1)
    torch_steps(optimizer, [a], range(3))
    optimizer.add_param_group({"params": [b], "lr": 0.2})
    torch_steps(optimizer, [a, b], range(3, 5))
    current = params_from_torch([a, b], [jnp.zeros(2), jnp.zeros(3)])
    opt = from_torch(optimizer, current)
    state = state_from_torch(opt, optimizer.state_dict(), current)
    assert eqopt.tree.step_count(state.inner_states["group_0"]) == 5
    assert eqopt.tree.step_count(state.inner_states["group_1"]) == 2
    torch_steps(optimizer, [a, b], range(5, 8))
    current, _ = eqopt_steps(opt, current, state, range(5, 8))
    assert_same(current, [a, b])


@pytest.mark.parametrize(
    "kind", ["Adafactor", pytest.param("Muon", marks=pytest.mark.slow)]
)
def test_state_of_transposed_matrices(kind, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda x: x.clone())
    shapes = [(3, 3), (2, 5)]
    parameters = tensors(shapes)
    optimizer = getattr(torch.optim, kind)(parameters, lr=0.1)
    torch_steps(optimizer, parameters, range(3))
    start = {"kept": jnp.zeros((2, 5)), "turned": jnp.zeros((3, 3))}
    options = {"transpose": {"kept": False, "turned": True}}
    current = params_from_torch(parameters, start, **options)
    opt = from_torch(optimizer, current, **options)
    state = state_from_torch(opt, optimizer.state_dict(), current, count=3, **options)
    step = eqx.filter_jit(opt.step)
    for i in range(3, 7):
        turned, kept = map(jnp.asarray, gradients(i, shapes))
        current, state = step({"kept": kept, "turned": turned.T}, state, current)
    torch_steps(optimizer, parameters, range(3, 7))
    assert_same([current["turned"].T, current["kept"]], parameters)


OWN = {
    "adamw, schedule": (
        "AdamW",
        {"lr": 0.1, "weight_decay": 0.3},
        lambda rate: eqopt.Chain(
            eqopt.ClipByGlobalNorm(1e6), eqopt.AdamW(rate, weight_decay=0.3)
        ),
    ),
    "momentum after the learning rate": (
        "RMSprop",
        {"lr": 0.1, "momentum": 0.8, "eps": 0.1},
        lambda rate: eqopt.RMSprop(0.1, 0.99, 0.1, eps_in_sqrt=False, momentum=0.8),
    ),
    "factors of any order": (
        "Adafactor",
        {"lr": 0.1},
        lambda rate: eqopt.Adafactor(rate, 1, eps=0.0),
    ),
}


@pytest.mark.parametrize("name", OWN)
def test_an_optimizer_of_the_user(name):
    kind, options, make = OWN[name]
    shapes = [(4, 3), (4,), (2, 6)]
    parameters = tensors(shapes)
    optimizer = getattr(torch.optim, kind)(parameters, **options)
    torch_steps(optimizer, parameters, range(3))
    rate = lambda count: jnp.where(count < 100, 0.1, jnp.nan)
    current = params_from_torch(parameters, [jnp.zeros(s) for s in shapes])
    opt = make(rate)
    state = state_from_torch(opt, optimizer.state_dict(), current)
    assert eqopt.tree.step_count(state) == 3
    torch_steps(optimizer, parameters, range(3, 6))
    current, _ = eqopt_steps(opt, current, state, range(3, 6))
    assert_same(current, parameters)


def test_arrays_of_numpy_and_a_count():
    """A checkpoint may have NumPy arrays. A given count replaces torch's count."""
    [x] = tensors([(2,)])
    optimizer = torch.optim.Adam([x])
    torch_steps(optimizer, [x], range(4))
    state_dict = optimizer.state_dict()
    state_dict["state"] = {
        key: {name: np.asarray(v) for name, v in entry.items()}
        for key, entry in state_dict["state"].items()
    }
    opt = eqopt.Adam(0.1)
    state = state_from_torch(opt, state_dict, jnp.zeros(2))
    assert avals(state) == avals(opt.init(jnp.zeros(2)))
    assert eqopt.tree.step_count(state) == 4
    state = state_from_torch(opt, state_dict, jnp.zeros(2), count=7)
    assert eqopt.tree.step_count(state) == 7
