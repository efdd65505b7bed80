"""The transformer of the guide in two ways of writing it, with the same weights."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from equinox import nn
from jax.nn import dot_product_attention, gelu

from ..docs.pages import DOCS, blocks
from ..docs.site import module
from ..interpreter import interpreted


def guide_of(**sizes: int) -> Any:
    """The script of the guide, whose model is of raw arrays, with some other sizes."""
    script = module("examples/train_transformer.py")
    for name, size in sizes.items():
        assert hasattr(script, name)
        setattr(script, name, size)
    return script


GUIDE = guide_of()


def norm(gain):
    layer = nn.RMSNorm(gain.shape, 1e-6, use_bias=False)
    return eqx.tree_at(lambda x: x.weight, layer, gain)


def linear(weight):
    """A layer with this weight, inputs first."""
    layer = nn.Linear(*weight.shape, use_bias=False, key=jr.key(0))
    return eqx.tree_at(lambda x: x.weight, layer, weight.T)


class Block(eqx.Module):
    attention_gain: nn.RMSNorm
    qkv: nn.Linear
    out: nn.Linear
    mlp_gain: nn.RMSNorm
    up: nn.Linear
    down: nn.Linear
    heads: int = eqx.field(static=True)

    def __init__(self, p):
        """For the arrays of a layer of the guide."""
        width, _, self.heads, _ = p["qkv"].shape
        self.attention_gain, self.mlp_gain = map(
            norm, (p["attention_gain"], p["mlp_gain"])
        )
        self.qkv = linear(p["qkv"].reshape(width, -1))
        self.out = linear(p["out"].reshape(width, -1))
        self.up, self.down = linear(p["up"]), linear(p["down"])

    def __call__(self, x):
        y = jax.vmap(self.qkv)(jax.vmap(self.attention_gain)(x))
        q, k, v = jnp.moveaxis(y.reshape(len(x), 3, self.heads, -1), 1, 0)
        q, k = GUIDE.normalized(q), GUIDE.normalized(k)
        y = dot_product_attention(q, k, v, is_causal=True)
        x = x + jax.vmap(self.out)(y.reshape(x.shape))
        y = jax.vmap(self.up)(jax.vmap(self.mlp_gain)(x))
        return x + jax.vmap(self.down)(gelu(y))


class Layers(eqx.Module):
    """The layers of Equinox, stacked with `eqx.filter_vmap`."""

    embedding: nn.Embedding
    positions: nn.Embedding
    blocks: Block
    gain: nn.RMSNorm
    head: nn.Linear

    def __init__(self, model):
        self.embedding = nn.Embedding(weight=model.embedding)
        self.positions = nn.Embedding(weight=model.positions)
        self.blocks = eqx.filter_vmap(Block)(model.blocks)
        self.gain, self.head = norm(model.gain), linear(model.head)

    def __call__(self, tokens):
        arrays, rest = eqx.partition(self.blocks, eqx.is_array)
        apply = lambda x, p: (eqx.combine(p, rest)(x), None)
        x = jax.vmap(self.embedding)(tokens) + self.positions.weight
        x, _ = jax.lax.scan(apply, x, arrays)
        return jax.vmap(self.head)(jax.vmap(self.gain)(x))


class Axis(NamedTuple):
    name: str
    size: int


class NamedArray(eqx.Module):
    array: jax.Array
    axes: tuple[Axis, ...] = eqx.field(static=True)


WRITINGS = {"arrays": lambda model: model, "layers": Layers}

# The page of the guide has the rules for the other ways.
PAGE: dict[str, Any] = {}
exec(
    next(b.code for b in blocks(DOCS / "transformer.md") if "of_names" in b.code), PAGE
)
RULES = {
    "arrays": GUIDE.MATRICES,
    "layers": PAGE["of_layers"],
    "named": PAGE["of_names"],
}


def losses(guide: Any, model: Any, rules: Any) -> list[float]:
    """The first losses in training with the optimizer of the guide."""
    pieces = jnp.asarray(np.random.default_rng(0).integers(11, size=(2, 8)))
    opt = guide.make_optimizer(20, rules)

    @interpreted
    def step(model, state):
        loss, grads = eqx.filter_value_and_grad(guide.mean_loss)(model, pieces)
        return loss, *opt.step(grads, state, model, value=loss)

    state, found = opt.init(model), []
    for _ in range(3):
        loss, model, state = step(model, state)
        found.append(float(loss))
    return found
