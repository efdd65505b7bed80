"""Trainings that begin in torch and go on in eqopt, with the same numbers."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt
from eqopt.interop.torch import from_torch, params_from_torch, state_from_torch

from ..laws.subjects import arrays, assert_equal, avals


torch = pytest.importorskip("torch")

SHAPES = [(3, 4), (4,), (), (2, 3, 2)]
MATRICES = [(3, 4), (5, 2)]


@pytest.fixture(autouse=True)
def float64(x64):
    """In which what torch and eqopt do is the same but for the last digits."""
    torch.set_default_dtype(torch.float64)  # also of steps and products in its states
    with x64():
        yield
    torch.set_default_dtype(torch.float32)


def gradients(i, shapes):
    rng = np.random.default_rng(100 + i)
    return [rng.standard_normal(shape) for shape in shapes]


def tensors(shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [torch.nn.Parameter(torch.tensor(rng.standard_normal(s))) for s in shapes]


def torch_steps(optimizer, parameters, steps):
    for i in steps:
        new = gradients(i, [p.shape for p in parameters])
        for p, g in zip(parameters, new, strict=True):
            p.grad = torch.tensor(g)
        optimizer.step()


def eqopt_steps(opt, params, state, steps):
    step = eqx.filter_jit(opt.step)
    leaves, treedef = jax.tree.flatten(params)
    for i in steps:
        new = map(jnp.asarray, gradients(i, [x.shape for x in leaves]))
        params, state = step(treedef.unflatten(new), state, params)
    return params, state


def assert_same(params, parameters):
    pairs = zip(jax.tree.leaves(params), parameters, strict=True)
    for ours, theirs in pairs:
        np.testing.assert_allclose(ours, theirs.detach().numpy(), 1e-10, 1e-12)


DECAY = {"weight_decay": 0.3}
APART = {**DECAY, "decoupled_weight_decay": True}
CASES = {
    "sgd": ("SGD", {}),
    "sgd, decay": ("SGD", DECAY),
    "momentum": ("SGD", {"lr": 0.1, "momentum": 0.8, **DECAY}),
    "nesterov": ("SGD", {"lr": 0.1, "momentum": 0.8, "nesterov": True}),
    "dampening": ("SGD", {"lr": 0.1, "momentum": 0.8, "dampening": 0.3, **DECAY}),
    "all dampened": ("SGD", {"lr": 0.1, "momentum": 0.8, "dampening": 1.0}),
    "maximize": ("SGD", {"lr": 0.1, "momentum": 0.8, "maximize": True, **DECAY}),
    "adam": ("Adam", {"betas": (0.7, 0.9), "eps": 0.1}),
    "adam, decay": ("Adam", DECAY),
    "adam, decoupled": ("Adam", APART),
    "adam, amsgrad": ("Adam", {"amsgrad": True, "betas": (0.5, 0.6), "eps": 0.1}),
    "adam, amsgrad, decay": ("Adam", {"amsgrad": True, **DECAY}),
    "adam, maximize": ("Adam", {"maximize": True, **DECAY}),
    "adamw": ("AdamW", {}),
    "adamw, no decay": ("AdamW", {"weight_decay": 0.0}),
    "adamw, amsgrad": ("AdamW", {"amsgrad": True, "eps": 0.1, **DECAY}),
    "nadam": ("NAdam", {}),
    "nadam, decay": ("NAdam", {"betas": (0.5, 0.9), "momentum_decay": 0.5, **DECAY}),
    "nadam, decoupled": ("NAdam", APART),
    "radam": ("RAdam", {}),
    "radam, decay": ("RAdam", {"betas": (0.7, 0.8), "eps": 0.1, **DECAY}),
    "radam, decoupled": ("RAdam", {"betas": (0.7, 0.8), "eps": 0.1, **APART}),
    "radam, no eps": ("RAdam", {"eps": 0.0}),
    "adamax": ("Adamax", {"eps": 0.1, **DECAY}),
    "adagrad": ("Adagrad", {}),
    "adagrad, all": (
        "Adagrad",
        {"lr_decay": 0.2, "initial_accumulator_value": 0.3, "eps": 0.1, **DECAY},
    ),
    "adadelta": ("Adadelta", {"lr": 0.5, "rho": 0.8, "eps": 1e-3, **DECAY}),
    "rmsprop": ("RMSprop", {"eps": 0.1, **DECAY}),
    "rmsprop, centered": ("RMSprop", {"alpha": 0.8, "eps": 0.1, "centered": True}),
    "rmsprop, momentum": ("RMSprop", {"momentum": 0.8, "eps": 0.1, **DECAY}),
    "rmsprop, all": ("RMSprop", {"momentum": 0.8, "centered": True, "eps": 0.1}),
    "rprop": ("Rprop", {"etas": (0.3, 1.7), "step_sizes": (1e-3, 0.05)}),
    "rprop, maximize": ("Rprop", {"maximize": True}),
    "adafactor": ("Adafactor", {}),
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
def test_goes_on_where_torch_stopped(name, monkeypatch):
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

    # The state is that of a training from the first step on.
    state_dict = optimizer.state_dict()
    moved = params_from_torch(parameters, params)
    converted = state_from_torch(opt, state_dict, moved, count=5)
    assert avals(converted) == avals(state)
    for a, b in zip(arrays(converted), arrays(state), strict=True):
        if kind != "ASGD":  # what it has before it averages, nobody sees
            np.testing.assert_allclose(a, b, 1e-6, 1e-12)

    torch_steps(optimizer, parameters, range(5, 15))
    params, converted = eqopt_steps(opt, moved, converted, range(5, 15))
    assert_same(params, parameters)
    if kind == "ASGD":
        averages = [optimizer.state[p]["ax"] for p in parameters]
        assert_same(opt.eval_params(converted, params), averages)


class Network(torch.nn.Module):
    """What the model below is in torch, with its parts in another order."""

    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(5, 2)
        self.conv = torch.nn.Conv1d(2, 4, 3)
        self.body = torch.nn.Linear(7, 5)


class Model(eqx.Module):
    conv: eqx.nn.Conv1d
    body: eqx.nn.Linear
    head: eqx.nn.Linear
    activation: object = jax.nn.relu

    def __init__(self, key):
        self.conv = eqx.nn.Conv1d(2, 4, 3, key=key, dtype=float)
        self.body = eqx.nn.Linear(7, 5, key=key, dtype=float)
        self.head = eqx.nn.Linear(5, 2, key=key, dtype=float)


def model():
    return Model(jax.random.key(0))


def params(tree):
    return eqx.filter(tree, eqx.is_inexact_array)


def equal(array, tensor):
    return np.array_equal(array, tensor.detach().numpy())


def test_parameters_of_a_model():
    """By their shapes, which occur once each; the bias of a convolution has more axes."""
    network = Network()
    moved = params_from_torch(network.parameters(), model())
    assert moved.activation is jax.nn.relu
    for name in ("conv", "body", "head"):
        ours, theirs = getattr(moved, name), getattr(network, name)
        assert equal(ours.weight, theirs.weight)
        assert equal(jnp.ravel(ours.bias), theirs.bias)
    assert moved.conv.bias.shape == (4, 1)


def test_parameters_by_their_names():
    """Also if shapes do not say which is which."""
    rng = np.random.default_rng(0)
    named = [(n, torch.tensor(rng.standard_normal(2))) for n in ("b.1", "a", "b.0")]
    moved = params_from_torch(named, {"a": jnp.zeros(2), "b": [jnp.zeros(2)] * 2})
    assert equal(moved["a"], named[1][1])
    assert equal(moved["b"][0], named[2][1])
    assert equal(moved["b"][1], named[0][1])


def test_parameters_by_their_paths():
    a, b = tensors([(2,), (2,)])
    start = {"x": jnp.zeros(2), "y": jnp.zeros(2), "z": jnp.ones(3)}
    moved = params_from_torch(
        [a, b, torch.ones(9)], start, paths=["['y']", "['x']", None]
    )
    assert equal(moved["y"], a) and equal(moved["x"], b)
    assert moved["z"] is start["z"]


@pytest.mark.parametrize("transpose", [True, {"w": True, "b": False}, lambda p: True])
def test_transposed_matrices(transpose):
    weight, bias = tensors([(2, 3), (2,)])
    start = {"b": jnp.zeros(2), "w": jnp.zeros((3, 2))}
    moved = params_from_torch([weight, bias], start, transpose=transpose)
    assert equal(moved["w"].T, weight) and equal(moved["b"], bias)


def test_parameters_in_bfloat16():
    [x] = tensors([(3,)])
    half = x.to(torch.bfloat16)
    moved = params_from_torch([half], [jnp.zeros(3, jnp.bfloat16)])
    assert moved[0].dtype == jnp.bfloat16
    assert equal(moved[0].astype(jnp.float32), half.float())
    assert equal(params_from_torch([half], [jnp.zeros(3)])[0], half.double())


def test_nothing_is_shared_with_torch():
    """Whose tensors change in place, while JAX takes arrays for constant."""
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
    """With an order and hyperparameters of their own, and a part that is frozen."""
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


def test_groups_that_are_one():
    a, b = tensors([(2,), (3,)])
    optimizer = torch.optim.Adam([{"params": [a]}, {"params": [b]}], lr=0.1)
    assert from_torch(optimizer) == eqopt.Adam(0.1)
    assert from_torch(optimizer, [jnp.zeros(2), jnp.zeros(3)]) == eqopt.Adam(0.1)


def test_groups_with_counts_of_their_own():
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
def test_an_optimizer_of_ones_own(name):
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


def test_scheduled_values_are_recorded():
    """As if the last step had been one of eqopt's."""
    [x] = tensors([(2,)])
    optimizer = torch.optim.RAdam([x], eps=0.1)
    torch_steps(optimizer, [x], range(4))
    current = params_from_torch([x], jnp.zeros(2))
    opt = from_torch(optimizer)
    _, own = eqopt_steps(opt, jnp.zeros(2), opt.init(jnp.zeros(2)), range(4))
    state = state_from_torch(opt, optimizer.state_dict(), current)
    assert state.hyperparams == own.hyperparams


def test_arrays_of_numpy_and_a_count():
    """As a checkpoint may have them; a count that is given goes before torch's."""
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


def test_tensors_as_hyperparameters():
    [x] = tensors([(2,)])
    betas = torch.tensor(0.5), torch.tensor(0.75)
    optimizer = torch.optim.Adam([x], torch.tensor(0.25), betas, capturable=True)
    assert from_torch(optimizer) == eqopt.Adam(0.25, 0.5, 0.75)


def test_equal_optimizers_are_equal():
    """So that compiled functions are shared."""
    for kind in ("SGD", "RAdam", "Adafactor", "Muon"):
        made = [
            from_torch(getattr(torch.optim, kind)(tensors([(2, 2)]), lr=0.1))
            for _ in range(2)
        ]
        assert made[0] == made[1]
