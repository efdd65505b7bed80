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


@pytest.mark.parametrize(
    ("call", "error", "messages"),
    [
        (
            lambda: params_from_torch(tensors([(2,), (2,), (4,)]), [jnp.ones(2)] * 3),
            ValueError,
            [
                "parameter 2 of torch has shape (4,), but the parameter at this "
                "position in the model, `[2]`, has shape (2,)",
                "The model has `[0]`, `[1]`, `[2]`.",
                "pass `transpose`",
            ],
        ),
        (
            lambda: params_from_torch(  # the bias of a convolution, or a weight?
                tensors([(4,), (4, 1)]), [jnp.ones((4, 1)), jnp.ones((4, 1))]
            ),
            ValueError,
            ["parameter 0 of torch has shape (4,)", "cannot be matched by shape"],
        ),
        (
            lambda: params_from_torch(
                [("w.x", torch.ones(2)), ("w.y", torch.ones(3))], [jnp.ones(2)] * 2
            ),
            ValueError,
            ["parameter 1 of torch (w.y) has shape (3,)"],
        ),
        (
            lambda: params_from_torch(tensors([(2, 3)]), [jnp.ones((3, 2))]),
            ValueError,
            [
                "has shape (2, 3), but the parameter at this position",
                "has shape (3, 2)",
            ],
        ),
        (
            lambda: params_from_torch(tensors([(2,)]), [jnp.ones(2)], paths=[]),
            ValueError,
            ["`paths` has 0 entries, but torch has 1 parameters"],
        ),
        (
            lambda: params_from_torch(tensors([(2,)]), [jnp.ones(2)], paths=[".x"]),
            ValueError,
            ["`paths` has `.x` more than once, or the model has no such"],
        ),
        (
            lambda: params_from_torch(
                tensors([(2,), (2,)]), [jnp.ones(2)] * 2, paths=["[0]", "[0]"]
            ),
            ValueError,
            ["`paths` has `[0]` more than once, or"],
        ),
        (
            lambda: params_from_torch(tensors([(3,)]), [jnp.ones(2)], paths=["[0]"]),
            ValueError,
            [
                "`paths[0]` is `[0]`, which has shape (2,) in torch's layout, but "
                "parameter 0 of torch has shape (3,)",
            ],
        ),
        (
            lambda: params_from_torch(
                tensors([(2, 2)]), [jnp.ones((2, 2))], transpose={"a": True}
            ),
            ValueError,
            ["`transpose` has another tree structure than `params`"],
        ),
        (
            lambda: params_from_torch(tensors([(2,)]), [jnp.ones(2, complex)]),
            ValueError,
            ["`[0]` is complex", "two real numbers"],
        ),
    ],
)
def test_messages(call, error, messages):
    with pytest.raises(error) as raised:
        call()
    for message in messages:
        assert message in str(raised.value)
