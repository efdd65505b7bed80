"""The transformer of the guide in haliax itself, with the same weights."""

from typing import Any

import equinox as eqx
import jax
import jax.random as jr
import numpy as np
import pytest

import eqopt
from eqopt import groups

from .test_routes import by_name
from .writings import RULES, guide_of, losses


hax = pytest.importorskip("haliax")

GUIDE = guide_of(VOCABULARY=11, WIDTH=8, HEADS=2, LAYERS=3, LENGTH=7)
EMBED, MLP = hax.Axis("embed", 8), hax.Axis("mlp", 32)
VOCAB, POSITION, LAYERS = (
    hax.Axis("vocab", 11),
    hax.Axis("position", 7),
    hax.Axis("layers", 3),
)
OF_QKV = hax.Axis("qkv", 3), hax.Axis("heads", 2), hax.Axis("head_size", 4)
HEADS = OF_QKV[1:]


def linear(weight, inputs, outputs):
    layer = hax.nn.Linear.init(inputs, outputs, key=jr.key(0), use_bias=False)
    axes = hax.axis.concat_axes(inputs, outputs)
    return eqx.tree_at(lambda x: x.weight, layer, hax.named(weight, axes))


def norm(gain):
    layer = hax.nn.RmsNorm.init(EMBED, eps=1e-6, use_bias=False)
    return eqx.tree_at(lambda x: x.weight, layer, hax.named(gain, EMBED))


class Block(eqx.Module):
    attention_gain: Any
    qkv: Any
    out: Any
    mlp_gain: Any
    up: Any
    down: Any

    @staticmethod
    def init(p):
        return Block(
            norm(p["attention_gain"]),
            linear(p["qkv"], EMBED, OF_QKV),
            linear(p["out"], HEADS, EMBED),
            norm(p["mlp_gain"]),
            linear(p["up"], EMBED, MLP),
            linear(p["down"], MLP, EMBED),
        )

    def __call__(self, x):
        y = self.qkv(self.attention_gain(x))
        q, k, v = (y["qkv", i].rearrange((POSITION, *HEADS)).array for i in range(3))
        q, k = GUIDE.normalized(q), GUIDE.normalized(k)
        y = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(hax.named(y, (POSITION, *HEADS)))
        return x + self.down(hax.nn.gelu(self.up(self.mlp_gain(x))))


class Named(eqx.Module):
    embedding: Any
    positions: Any
    blocks: Any
    gain: Any
    head: Any

    @staticmethod
    def init(model):
        stacked = hax.nn.Stacked.init(LAYERS, Block)(model.blocks)
        table = lambda x, axis: hax.nn.Embedding(
            hax.named(x, (axis, EMBED)), axis, EMBED
        )
        return Named(
            table(model.embedding, VOCAB),
            table(model.positions, POSITION),
            stacked,
            norm(model.gain),
            linear(model.head, EMBED, VOCAB),
        )

    def __call__(self, tokens):
        x = self.embedding(hax.named(tokens, POSITION)) + self.positions.weight
        logits = self.head(self.gain(self.blocks.fold(x)))
        return logits.rearrange((POSITION, VOCAB)).array


@pytest.fixture(scope="module")
def models():
    model = GUIDE.Transformer(jr.key(0))
    return {"arrays": model, "named": Named.init(model)}


def test_the_same_routes(models):
    first, other = (
        by_name(groups.routes(GUIDE.make_optimizer(20, RULES[way]), model))
        for way, model in models.items()
    )
    assert other == first


def test_layers_need_no_rule(models):
    """Without one, all outputs of `qkv` are one side of a matrix."""
    found, _ = by_name(groups.routes(eqopt.Muon(0.02), models["named"]))
    assert {name: x[1] for name, x in found.items() if x[1]} == {
        "qkv": ((3, 24, 8),),
        "out": ((3, 8, 8),),
        "up": ((3, 32, 8),),
        "down": ((3, 8, 32),),
        "head": ((1, 11, 8),),
    }


@pytest.mark.usefixtures("standard_promotion")
@pytest.mark.filterwarnings("ignore:jax.core.is_constant_dim is deprecated")
def test_the_same_losses(models):
    first, other = (losses(GUIDE, model, RULES[way]) for way, model in models.items())
    assert first[-1] < first[0] - 0.05
    np.testing.assert_allclose(other, first, rtol=1e-5)
