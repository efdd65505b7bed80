"""Which parameter of torch belongs to which parameter of a model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqopt.interop.torch import params_from_torch

from .torch_network import Network, model
from .torch_steps import equal, tensors


torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("float64")


def test_parameters_of_a_model():
    """By shape, as each occurs once. The bias of a convolution has more axes here."""
    network = Network()
    moved = params_from_torch(network.parameters(), model())
    assert moved.activation is jax.nn.relu
    for name in ("conv", "body", "head"):
        ours, theirs = getattr(moved, name), getattr(network, name)
        assert equal(ours.weight, theirs.weight)
        assert equal(jnp.ravel(ours.bias), theirs.bias)
    assert moved.conv.bias.shape == (4, 1)


def test_parameters_of_shapes_that_are_nearly_the_same():
    """A weight with one input is not taken for a bias, and no bias for a weight."""
    weight, bias = tensors([(4, 1), (4,)])
    moved = params_from_torch(
        [weight, bias], {"a": jnp.zeros(4), "w": jnp.zeros((4, 1))}
    )
    assert equal(moved["w"], weight) and equal(moved["a"], bias)

    a, b, c = tensors([(4,), (4,), (4, 2)])
    start = [jnp.zeros((4, 1, 1)), jnp.zeros(4), jnp.zeros((4, 2))]
    moved = params_from_torch([a, b, c], start)
    assert equal(moved[0][:, 0, 0], a) and equal(moved[1], b)


def test_parameters_by_their_names():
    """Also if several parameters have the same shape."""
    rng = np.random.default_rng(0)
    named = [(n, torch.tensor(rng.standard_normal(2))) for n in ("b.1", "a", "b.0")]
    for given in (named, dict(named)):
        moved = params_from_torch(given, {"a": jnp.zeros(2), "b": [jnp.zeros(2)] * 2})
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
