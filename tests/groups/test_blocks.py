"""Blocks of arrays, by the layers that they are in."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from eqopt.groups import BlockAxes, layer_blocks
from eqopt.groups._blocks import block_shapes


nn, KEY = eqx.nn, jax.random.key(0)


def shapes(model, given=layer_blocks):
    """How many blocks there are along each axis, by key path."""
    leaves = jax.tree_util.tree_leaves_with_path(model, is_leaf=lambda x: x is None)
    found = block_shapes(given, model)
    return {
        jax.tree_util.keystr(path): shape
        for (path, _), shape in zip(leaves, found, strict=True)
        if shape is not None
    }


class Mine(nn.Linear):
    """A subclass counts."""


def attention(key=KEY):
    return nn.MultiheadAttention(2, 4, use_key_bias=True, key=key)


OF_ATTENTION = {
    ".query_proj.weight": (2, 1),
    ".key_proj.weight": (2, 1),
    ".key_proj.bias": (4,),
    ".value_proj.weight": (4, 1),
    ".output_proj.weight": (4, 1),
}
LAYERS = {
    "Linear": (nn.Linear(2, 3, key=KEY), {".weight": (3, 1), ".bias": (3,)}),
    "a node in place of a weight": (
        eqx.tree_at(lambda m: m.weight, Mine(2, 3, key=KEY), replace_fn=lambda x: [x]),
        {".weight[0]": (3, 1), ".bias": (3,)},
    ),
    "Conv1d": (nn.Conv1d(2, 3, 4, key=KEY), {".weight": (3, 1, 1), ".bias": (3, 1)}),
    "ConvTranspose2d": (
        nn.ConvTranspose2d(2, 3, 4, use_bias=False, key=KEY),
        {".weight": (3, 1, 1, 1)},
    ),
    "GRUCell": (
        nn.GRUCell(2, 3, key=KEY),
        {".weight_ih": (9, 1), ".weight_hh": (9, 1), ".bias": (9,), ".bias_n": (3,)},
    ),
    "Embedding": (nn.Embedding(5, 3, key=KEY), {".weight": (5, 1)}),
    "LayerNorm": (nn.LayerNorm((2, 3)), {".weight": (1, 1), ".bias": (2, 3)}),
    "RMSNorm": (nn.RMSNorm(3, use_bias=False), {".weight": (1,)}),
    "GroupNorm": (nn.GroupNorm(2, 4), {".weight": (1,), ".bias": (4,)}),
    "MultiheadAttention": (attention(), OF_ATTENTION),
    "arrays": ([jnp.ones((2, 3)), jnp.ones(())], {"[0]": (1, 1), "[1]": ()}),
}


@pytest.mark.parametrize("name", LAYERS)
def test_blocks_of_layers(name):
    layer, expected = LAYERS[name]
    assert shapes(layer) == expected
    inside = {f"['a'][0]{path}": shape for path, shape in expected.items()}
    assert shapes({"a": (layer, jax.nn.relu, None)}) == inside


@pytest.mark.parametrize("make", [attention, lambda key: nn.Conv1d(2, 3, 4, key=key)])
@pytest.mark.slow
def test_each_layer_of_a_stack_has_its_own(make):
    stack = eqx.filter_vmap(make)(jax.random.split(KEY, 7))
    assert shapes(stack) == {p: (7, *shape) for p, shape in shapes(make(KEY)).items()}


def test_one_for_all():
    params = {"a": jnp.ones((4, 3)), "b": jnp.ones((2, 4, 0))}
    assert shapes(params, BlockAxes((1, 0))) == {"['a']": (1, 1), "['b']": (1, 1, 0)}
    assert shapes(params, BlockAxes(-2, 2)) == {"['a']": (2, 3), "['b']": (2, 2, 0)}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (BlockAxes(2), r"`\['w'\]` of shape \(4, 3\): `axes` must be distinct axes"),
        (
            BlockAxes((1, -1)),
            r"axes=\(1, -1\).* does not fit `\['w'\]`.* distinct axes",
        ),
        (BlockAxes((-1, 0), 2), r"`groups` must divide .* the first one"),
    ],
)
def test_what_does_not_fit(given, message):
    with pytest.raises(ValueError, match=message):
        shapes({"w": jnp.ones((4, 3))}, {"w": given})
