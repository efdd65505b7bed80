"""Which axes of which arrays make matrices."""

import functools
import types

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt
from eqopt._matrices.axes import resolve_dimension_numbers
from eqopt._matrices.layouts import layout_of
from eqopt._matrices.matrixwise import AbstractContracting
from eqopt._matrices.recognition import of_layers


Numbers = eqopt.MatrixDimensionNumbers
LINEAR = Numbers(-1, -2)
nn, KEY = eqx.nn, jax.random.key(0)


def chosen(model):
    """The key paths of the matrices in a model, with their dimension numbers."""
    paths, _ = jax.tree_util.tree_flatten_with_path(model, is_leaf=lambda x: x is None)
    numbers = of_layers(model)
    assert len(numbers) == len(paths)
    return {
        jax.tree_util.keystr(path): n
        for (path, _), n in zip(paths, numbers, strict=True)
        if n is not None
    }


LAYERS = {
    "Linear": (lambda: nn.Linear(2, 3, key=KEY), {".weight": LINEAR}),
    "Conv2d": (
        lambda: nn.Conv2d(2, 3, 4, key=KEY),
        {".weight": Numbers((-3, -2, -1), -4)},
    ),
    "ConvTranspose1d": (
        lambda: nn.ConvTranspose1d(2, 3, 4, key=KEY),
        {".weight": Numbers((-2, -1), -3)},
    ),
    "GRUCell": (
        lambda: nn.GRUCell(2, 3, key=KEY),
        {".weight_ih": LINEAR, ".weight_hh": LINEAR},
    ),
    "Embedding": (lambda: nn.Embedding(5, 3, key=KEY), {}),
    "PReLU": (lambda: nn.PReLU(0.1), {}),
    "WeightNorm": (
        lambda: nn.WeightNorm(nn.Linear(2, 3, key=KEY)),
        {".layer.weight": LINEAR},
    ),
    "MultiheadAttention": (
        lambda: nn.MultiheadAttention(2, 4, key=KEY),
        {
            f".{name}_proj.weight": LINEAR
            for name in ("query", "key", "value", "output")
        },
    ),
}


class Adapted(nn.Linear):
    """A layer of a user's, with one more matrix."""

    update: jax.Array

    def __init__(self):
        super().__init__(2, 3, key=KEY)
        self.update = jnp.ones((2, 3))


class Counting(nn.StatefulLayer):
    scale: jax.Array

    def __call__(self, x, state):
        return self.scale @ x, state


def test_subclasses_are_layers():
    expected = {".weight": LINEAR, ".update": Numbers()}
    assert chosen(Adapted()) == expected
    assert chosen([Adapted()]) == {f"[0]{path}": n for path, n in expected.items()}
    assert chosen(Counting(jnp.ones((2, 3)))) == {".scale": Numbers()}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.costly
def test_layers(name):
    make, expected = LAYERS[name]
    layer = make()
    assert chosen(layer) == expected
    # The same in a model, with parameters alone, and as a stack of layers.
    assert chosen([layer]) == {f"[0]{path}": n for path, n in expected.items()}
    assert chosen(eqx.filter(layer, eqx.is_inexact_array)) == expected
    stacked = jax.tree.map(
        lambda x: jnp.stack([x, x]) if eqx.is_inexact_array(x) else x, layer
    )
    assert chosen(stacked) == expected


class Normed(eqx.Module):
    """Replaces an array, for weight normalisation or an adapter."""

    gain: jax.Array
    direction: jax.Array

    def __init__(self, array):
        self.gain, self.direction = jnp.ones((9, 1)), array


@pytest.mark.parametrize("name", sorted(LAYERS.keys() - {"PReLU", "WeightNorm"}))
@pytest.mark.costly
def test_nodes_that_replace_arrays(name):
    """An array with the shape of the weight is the weight, and no other is a matrix."""
    make, expected = LAYERS[name]
    is_array = eqx.is_inexact_array
    layer = jax.tree.map(lambda x: Normed(x) if is_array(x) else x, make())
    inside = {f"{path}.direction": numbers for path, numbers in expected.items()}
    assert chosen(layer) == inside
    stacked = jax.tree.map(lambda x: jnp.stack([x, x]) if is_array(x) else x, layer)
    assert chosen(stacked) == inside


@pytest.mark.parametrize(
    ("shape", "numbers", "matrices"),
    [
        ((2, 3), Numbers(), (2, 3)),
        ((2, 3), Numbers(-1, -2), (3, 2)),
        ((7, 2, 3), LINEAR, (7, 3, 2)),
        ((7, 2, 3, 4, 5), Numbers((-3, -2, -1), -4), (7, 60, 2)),
        ((2, 7, 3, 4), Numbers(0, (2, 3)), (7, 2, 12)),
        ((6, 2, 3, 7), Numbers(1, 2), (6, 7, 2, 3)),
        ((0, 3), Numbers(), (0, 3)),
    ],
)
def test_there_and_back(shape, numbers, matrices):
    x = jnp.arange(np.prod(shape), dtype=jnp.float32).reshape(shape)
    (axes,) = resolve_dimension_numbers([numbers], [x], None)
    stack, lengths = matrices[:-2], matrices[-2:]
    for rows in ("first", "shorter"):
        sides = sides_of(axes, shape, rows)
        there = sides.to_matrices(x)
        assert there.shape[:-2] == stack
        assert sorted(there.shape[-2:]) == sorted(lengths)
        assert rows == "first" or [*there.shape[-2:]] == sorted(lengths)
        assert jnp.array_equal(sides.from_matrices(there, shape), x)


def sides_of(axes, shape, rows):
    owner = types.SimpleNamespace(_rows=rows)
    choose_rows = functools.partial(AbstractContracting._choose_rows, owner)
    return layout_of(axes, shape, None, choose_rows).sides


PARAMS = {"a": jnp.ones((2, 3)), "b": [jnp.ones(3), jnp.ones((4, 2, 3)), None]}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, [True, False, False, False]),
        (LINEAR, [True, False, True, False]),
        ({"a": LINEAR, "b": None}, [True, False, False, False]),
        ({"a": None, "b": [None, LINEAR, LINEAR]}, [False, False, True, False]),
        (lambda p: {"a": LINEAR, "b": None}, [True, False, False, False]),
        (lambda p: None, [True, False, False, False]),
    ],
)
def test_ways_to_say_it(given, expected):
    axes = resolve_dimension_numbers(given, PARAMS, None)
    assert [a is not None for a in axes] == expected


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (
            {"a": Numbers(0, 2), "b": None},
            ValueError,
            r"shape \(2, 3\). Each axis must be one of",
        ),
        ({"a": Numbers(0, -2), "b": None}, ValueError, "have only one role"),
        ({"a": 1, "b": None}, TypeError, r"1 does not fit `\['a'\]`.*must hold"),
        (
            {"c": LINEAR},
            ValueError,
            "`weight_dimension_numbers` has another tree struc",
        ),
    ],
)
def test_errors(given, error, message):
    with pytest.raises(error, match=message):
        resolve_dimension_numbers(given, PARAMS, None)
