"""A small transformer in three ways of writing it, with the same numbers."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from equinox import nn
from jax import lax


LAYERS, WIDTH, HEADS, SIZE, INNER, WORDS = 2, 8, 2, 3, 16, 11

# In a layer, the inputs and the outputs of each matrix.
SIDES = {
    "query": ((WIDTH,), (HEADS, SIZE)),
    "key": ((WIDTH,), (HEADS, SIZE)),
    "value": ((WIDTH,), (HEADS, SIZE)),
    "out": ((HEADS, SIZE), (WIDTH,)),
    "up": ((WIDTH,), (INNER,)),
    "down": ((INNER,), (WIDTH,)),
}


def numbers():
    """All arrays: matrices with the inputs first, and stacks with the layers first."""
    shapes = {name: (LAYERS, *a, *b) for name, (a, b) in SIDES.items()}
    shapes |= {"embedding": (WORDS, WIDTH), "head": (WIDTH, WORDS)}
    draw = np.random.default_rng(0).normal
    arrays = {
        name: jnp.asarray(draw(size=shape) / 4, jnp.float32)
        for name, shape in shapes.items()
    }
    return arrays | {"gain": jnp.ones((LAYERS, WIDTH))}


class Arrays(eqx.Module):
    """Everything is an array, with an axis of layers first."""

    blocks: dict
    embedding: jax.Array
    head: jax.Array

    def __init__(self, arrays):
        # Two axes of the matrices in a layer, so that heads are joined.
        self.blocks = {
            name: arrays[name].reshape(LAYERS, np.prod(a), np.prod(b))
            for name, (a, b) in SIDES.items()
        }
        self.blocks["gain"] = arrays["gain"]
        self.embedding, self.head = arrays["embedding"], arrays["head"]

    def arrays(self):
        blocks = {
            name: self.blocks[name].reshape(LAYERS, *a, *b)
            for name, (a, b) in SIDES.items()
        }
        rest = {"embedding": self.embedding, "head": self.head}
        return blocks | rest | {"gain": self.blocks["gain"]}


class Block(eqx.Module):
    linears: dict
    norm: nn.RMSNorm

    def __init__(self, weights):
        self.linears = {}
        for name, weight in weights.items():
            layer = nn.Linear(*weight.shape, use_bias=False, key=jax.random.key(0))
            self.linears[name] = eqx.tree_at(lambda x: x.weight, layer, weight.T)
        self.norm = nn.RMSNorm(WIDTH, use_bias=False)


class Layers(eqx.Module):
    """The layers of Equinox, stacked with `eqx.filter_vmap`."""

    blocks: Block
    embedding: nn.Embedding
    head: nn.Linear

    def __init__(self, arrays):
        raw = Arrays(arrays)
        weights = {name: raw.blocks[name] for name in SIDES}
        self.blocks = eqx.filter_vmap(Block)(weights)
        self.embedding = nn.Embedding(weight=arrays["embedding"])
        self.head = nn.Linear(WIDTH, WORDS, use_bias=False, key=jax.random.key(0))
        self.head = eqx.tree_at(lambda x: x.weight, self.head, arrays["head"].T)

    def arrays(self):
        blocks = {
            name: jnp.swapaxes(self.blocks.linears[name].weight, 1, 2).reshape(
                LAYERS, *a, *b
            )
            for name, (a, b) in SIDES.items()
        }
        rest = {"embedding": self.embedding.weight, "head": self.head.weight.T}
        return blocks | rest | {"gain": self.blocks.norm.weight}


class Axis(NamedTuple):
    name: str
    size: int


class NamedArray(eqx.Module):
    array: jax.Array
    axes: tuple[Axis, ...] = eqx.field(static=True)


class Linear(eqx.Module):
    weight: NamedArray
    In: tuple[Axis, ...] = eqx.field(static=True)
    Out: tuple[Axis, ...] = eqx.field(static=True)


class Embedding(eqx.Module):
    weight: NamedArray
    Vocab: Axis = eqx.field(static=True)
    Embed: Axis = eqx.field(static=True)


class Norm(eqx.Module):
    weight: NamedArray
    axis: Axis = eqx.field(static=True)


class Stacked(eqx.Module):
    stacked: dict
    Block: Axis = eqx.field(static=True)


AXES = {
    WIDTH: Axis("embed", WIDTH),
    HEADS: Axis("heads", HEADS),
    SIZE: Axis("head_size", SIZE),
    INNER: Axis("mlp", INNER),
    WORDS: Axis("vocab", WORDS),
}
LAYER = Axis("layers", LAYERS)
EMBED, VOCAB = AXES[WIDTH], AXES[WORDS]


class Named(eqx.Module):
    """Arrays with named axes, in layers that name them as haliax does.

    The outputs come first in some of them, because only the names matter.
    """

    blocks: Stacked
    embedding: Embedding
    head: Linear

    def __init__(self, arrays):
        layers: dict = {}
        for name, sides in SIDES.items():
            inputs, outputs = (tuple(AXES[n] for n in side) for side in sides)
            if name in ("up", "value"):
                axes = (LAYER, *outputs, *inputs)
                weight = jnp.moveaxis(arrays[name], 1, -1)
            else:
                axes, weight = (LAYER, *inputs, *outputs), arrays[name]
            layers[name] = Linear(NamedArray(weight, axes), inputs, outputs)
        layers["norm"] = Norm(NamedArray(arrays["gain"], (LAYER, EMBED)), EMBED)
        self.blocks = Stacked(layers, LAYER)
        words = NamedArray(arrays["embedding"], (VOCAB, EMBED))
        self.embedding = Embedding(words, VOCAB, EMBED)
        head = NamedArray(arrays["head"], (EMBED, VOCAB))
        self.head = Linear(head, (EMBED,), (VOCAB,))

    def arrays(self):
        found = {name: x.weight.array for name, x in self.blocks.stacked.items()}
        for name in ("up", "value"):
            found[name] = jnp.moveaxis(found[name], -1, 1)
        rest = {"embedding": self.embedding.weight, "head": self.head.weight}
        gain = found.pop("norm")
        return found | {k: x.array for k, x in rest.items()} | {"gain": gain}


WRITINGS = {"layers": Layers, "arrays": Arrays, "named": Named}


def loss_fn(model, words):
    """The cross-entropy of the next word, for a sequence of words."""
    arrays = model.arrays()
    layers = {name: arrays[name] for name in (*SIDES, "gain")}
    mask = jnp.tril(jnp.ones((len(words), len(words)), bool))

    def block(x, p):
        h = p["gain"][None] * x / jnp.sqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-5)
        q, k, v = (
            jnp.einsum("td,dhs->ths", h, p[n]) for n in ("query", "key", "value")
        )
        scores = jnp.where(mask[None], jnp.einsum("ths,uhs->htu", q, k), -1e9)
        mixed = jnp.einsum("htu,uhs->ths", jax.nn.softmax(scores), v)
        x = x + jnp.einsum("ths,hsd->td", mixed, p["out"])
        return x + jax.nn.gelu(x @ p["up"]) @ p["down"], None

    x, _ = lax.scan(block, arrays["embedding"][words], layers)
    log_probs = jax.nn.log_softmax(x[:-1] @ arrays["head"])
    return -jnp.mean(log_probs[jnp.arange(len(words) - 1), words[1:]])
