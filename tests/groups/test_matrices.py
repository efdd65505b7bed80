"""Which arrays are matrices: outside the layers of Equinox, and next to them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from equinox import nn

import eqopt
from eqopt.groups import BlockAxes, layer_blocks, layer_matrices

from ..interpreter import interpreted


KEY = jr.key(0)
Numbers = eqopt.MatrixDimensionNumbers
LINEAR, STACK, INPUTS_FIRST = Numbers(-1, -2), Numbers(-2, -1), Numbers()
is_none = lambda x: x is None


class Experts(eqx.Module):
    """Without a layer of Equinox."""

    up: jax.Array
    gain: jax.Array
    temperature: jax.Array

    def __init__(self, key):
        self.up = jr.normal(key, (4, 6))
        self.gain, self.temperature = jnp.ones(4), jnp.ones(())


class Block(eqx.Module):
    norm: nn.LayerNorm
    qkv: nn.Linear
    mlp: Experts
    bias: jax.Array
    activation: object = jnp.tanh

    def __init__(self, key):
        self.norm, self.qkv = nn.LayerNorm(4), nn.Linear(4, 12, key=key)
        self.mlp, self.bias = Experts(key), jnp.zeros(4)


class Reader(eqx.Module):
    """Layers with arrays that are neither weights of inputs nor vectors."""

    embedding: nn.Embedding
    image: nn.Conv2d
    signal: nn.Conv1d

    def __init__(self, key):
        self.embedding = nn.Embedding(9, 4, key=key)
        self.image, self.signal = (
            nn.Conv2d(2, 3, 2, key=key),
            nn.Conv1d(2, 4, 3, key=key),
        )


class Model(eqx.Module):
    embedding: nn.Embedding
    blocks: Block
    head: jax.Array


def stacked(make, *sizes):
    keys = jr.split(KEY, sizes)
    for _ in sizes:
        make = eqx.filter_vmap(make)
    return make(keys)


def model_of(blocks):
    return Model(nn.Embedding(9, 4, key=KEY), blocks, jnp.ones((4, 9)))


def found(tree, of=layer_matrices):
    """The value of `of` for each parameter, by key path."""
    leaves = jax.tree_util.tree_leaves_with_path(of(tree), is_leaf=is_none)
    return {jax.tree_util.keystr(path): x for path, x in leaves if x is not None}


OF_BLOCK = {".qkv.weight": LINEAR, ".mlp.up": STACK}


def test_one_block():
    block = Block(KEY)
    assert found(block) == {".qkv.weight": LINEAR, ".mlp.up": INPUTS_FIRST}
    assert found(layer_matrices(block), lambda x: x) == found(block)


@pytest.mark.parametrize("sizes", [(3,), (4,), (2, 3), (1,)], ids=str)
@pytest.mark.slow
def test_own_arrays_of_a_stack(sizes):
    """A gain is a vector for each layer, as it is in one layer."""
    blocks = stacked(Block, *sizes)
    assert found(blocks) == OF_BLOCK
    inside = {f".blocks{path}": numbers for path, numbers in OF_BLOCK.items()}
    assert found(model_of(blocks)) == inside | {".head": INPUTS_FIRST}
    shapes = eqx.filter_eval_shape(lambda: eqx.filter(blocks, eqx.is_inexact_array))
    assert found(shapes) == OF_BLOCK
    as_dict = {"a": blocks.qkv, "gain": [blocks.mlp.gain], "up": blocks.mlp.up}
    assert found(as_dict) == {"['a'].weight": LINEAR, "['up']": STACK}


def test_only_what_all_arrays_share_is_a_stack():
    """Each of two runs has three layers, and all layers of a run share one gain."""
    inner = stacked(Block, 2, 3)
    outer = {"blocks": inner, "gain": jnp.ones((2, 4)), "up": jnp.ones((2, 4, 5))}
    assert found(outer) == {"['up']": STACK} | {
        f"['blocks']{path}": numbers for path, numbers in OF_BLOCK.items()
    }
    del outer["gain"], outer["up"]
    assert found({**outer, "b": jnp.ones((3, 4))})["['b']"] == INPUTS_FIRST


@pytest.mark.parametrize(
    "make",
    [
        lambda key: nn.Linear(4, 5, use_bias=False, key=key),
        lambda key: eqx.tree_at(
            lambda layer: layer.weight,
            nn.Linear(4, 5, key=key),
            replace_fn=lambda x: {"gain": jnp.ones((5, 1)), "direction": x},
        ),
        lambda key: nn.Conv2d(4, 5, 2, key=key),
        lambda key: nn.GRUCell(4, 5, key=key),
        lambda key: nn.MLP(4, 4, 5, 2, key=key),
        lambda key: nn.MultiheadAttention(2, 4, key=key),
        lambda key: nn.LayerNorm((4, 5)),
        lambda key: nn.RMSNorm(4),
        lambda key: nn.GroupNorm(2, 4),
        lambda key: nn.Embedding(5, 4, key=key),
    ],
)
@pytest.mark.costly
def test_layers_that_show_a_stack(make):
    gains = {"gain": jnp.ones((3, 4)), "own": jnp.ones((3, 4, 4))}
    numbers = found({"layer": stacked(make, 3), **gains})
    assert "['gain']" not in numbers and numbers["['own']"] == STACK
    numbers = found({"layer": make(KEY), **gains})
    assert numbers["['gain']"] == INPUTS_FIRST and "['own']" not in numbers


def test_blocks_of_own_arrays():
    """Adam-mini has one for each layer of a stack."""
    blocks = found(stacked(Block, 3), layer_blocks)
    assert blocks[".mlp.up"] == BlockAxes((-2, -1))
    assert blocks[".mlp.gain"] == blocks[".bias"] == BlockAxes((-1,))
    assert blocks[".mlp.temperature"] == BlockAxes(())
    assert found(Block(KEY), layer_blocks)[".mlp.up"] == BlockAxes()


@interpreted
def steps_of(opt, model):
    """The first updates, for gradients that do not depend on the layout."""
    grads = jax.tree.map(jnp.cos, eqx.filter(model, eqx.is_inexact_array))
    return opt.update(grads, opt.init(model), model)[0]


@pytest.mark.parametrize(
    "opt",
    [
        eqopt.Muon(0.1),
        eqopt.Muon(0.1, fallback=eqopt.AdamMini(0.1)),
        eqopt.SOAP(0.1, skip_first=False),
        eqopt.AdamP(0.1, delta=1e3),
        eqopt.AdamMini(0.1),
        eqopt.AdaptiveGradClip(0.1),
    ],
    ids=lambda opt: type(opt).__name__,
)
@pytest.mark.parametrize("make", [Block, Reader])
@pytest.mark.costly
def test_a_stack_takes_the_steps_of_its_layers(opt, make):
    """For all leaves, also arrays that are in no layer of Equinox."""
    blocks = stacked(make, 3)
    together = steps_of(opt, blocks)
    for i in range(3):
        one = jax.tree.map(lambda x, i=i: x[i] if eqx.is_array(x) else x, blocks)
        apart = jax.tree.leaves(steps_of(opt, one))
        for a, b in zip(jax.tree.leaves(together), apart, strict=True):
            np.testing.assert_allclose(a[i], b, rtol=1e-4, atol=1e-6)


ARE_OWN = eqopt.groups.path("bias|gain|temperature")
IN_PARTS = {
    "Masked twice": lambda opt: eqopt.Masked(
        eqopt.Masked(opt, eqopt.groups.path("gain|bias")), ARE_OWN
    ),
    "Partition": lambda opt: eqopt.Partition(
        {"own": opt, "rest": eqopt.SetToZero()},
        eqopt.groups.label({"own": ARE_OWN, "rest": eqopt.groups.everything}),
    ),
}


@pytest.mark.parametrize("name", IN_PARTS)
@pytest.mark.parametrize(
    "opt",
    [
        eqopt.AdaptiveGradClip(1e-3),
        eqopt.AdamMini(0.1),
        eqopt.Muon(0.1, fallback=eqopt.AdamMini(0.1)),
        eqopt.Orthogonalize(),
    ],
    ids=lambda opt: type(opt).__name__,
)
@pytest.mark.costly
def test_own_arrays_of_a_stack_without_its_layers(opt, name):
    """The stack follows from the whole model, of which the optimizer sees a part."""
    blocks = jax.tree.map(
        lambda x: x + jr.normal(KEY, x.shape) if eqx.is_array(x) else x,
        stacked(Block, 3),
    )
    whole, part = steps_of(opt, blocks), steps_of(IN_PARTS[name](opt), blocks)
    for of in (lambda x: x.mlp.gain, lambda x: x.norm.bias, lambda x: x.bias):
        np.testing.assert_allclose(of(part), of(whole), rtol=1e-5)
    grads = eqx.filter(blocks, eqx.is_inexact_array)
    if isinstance(opt, eqopt.Orthogonalize):  # it needs no parameters
        alone = IN_PARTS[name](opt).update(grads, IN_PARTS[name](opt).init(blocks))[0]
        assert (alone.mlp.gain == grads.mlp.gain).all()


def test_the_fix_in_the_message():
    """It is the code to write with a selector, also for an array alone."""
    for params in ({"a": {"own": jnp.ones((3, 4, 5))}}, jnp.ones((3, 4, 5))):
        with pytest.raises(ValueError, match="Pass `weight") as error:
            eqopt.Muon(0.1).init(params)
        code = str(error.value).split("`weight_dimension_numbers=")[1].split("`")[0]
        numbers = eval(code, {"selector": eqopt.groups.everything, "eqopt": eqopt})
        opt = eqopt.Muon(0.1, weight_dimension_numbers=numbers)
        (mu,) = jax.tree.leaves(opt.init(params)[0].mu)
        assert mu.shape == (3, 4, 5)


@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.costly
def test_a_frozen_part(is_whole):
    """Whether an array is in a stack follows from the model, not from the gradients."""
    model = stacked(Block, 3)
    is_trained = eqopt.groups.where(lambda m: (m.mlp.up, m.mlp.gain, m.qkv.weight))
    trained = eqx.filter(model, is_trained(model))
    opt = eqopt.Muon(0.1)
    state = opt.init(model if is_whole else trained)
    new, after = opt.step(trained, state, model)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert (new.mlp.gain != model.mlp.gain).all() and (new.bias == model.bias).all()
    assert state[0].mu.mlp.gain is None and state[0].mu.mlp.up is not None
