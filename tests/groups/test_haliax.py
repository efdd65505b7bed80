"""Layers of haliax itself: their axes say which sides of a matrix are inputs."""

from typing import Any

import equinox as eqx
import jax.random as jr
import pytest

import eqopt
from eqopt import groups

from .test_routes import by_name
from .writings import RULES


hax = pytest.importorskip("haliax")
EMBED, MLP, VOCAB = hax.Axis("embed", 8), hax.Axis("mlp", 32), hax.Axis("vocab", 11)
LAYERS, QKV, HEADS = hax.Axis("layers", 3), hax.Axis("qkv", 3), hax.Axis("heads", 2)
SIZE = hax.Axis("head_size", 4)


def linear(inputs, outputs):
    return hax.nn.Linear.init(inputs, outputs, key=jr.key(0), use_bias=False)


class Block(eqx.Module):
    gain: Any
    qkv: Any
    out: Any
    up: Any

    @staticmethod
    def init():
        return Block(
            hax.nn.RmsNorm.init(EMBED, use_bias=False),
            linear(EMBED, (QKV, HEADS, SIZE)),
            linear((HEADS, SIZE), EMBED),
            linear(EMBED, MLP),
        )


MODEL = {
    "embedding": hax.nn.Embedding.init(VOCAB, EMBED, key=jr.key(0)),
    "blocks": hax.nn.Stacked.init(LAYERS, Block)(),
    "head": linear(EMBED, VOCAB),
}
FOUND = {"out": ((3, 8, 8),), "up": ((3, 32, 8),)}


def matrices(**options):
    found, _ = by_name(groups.routes(eqopt.Muon(0.02, **options), MODEL))
    return {name: x[1] for name, x in found.items() if x[1]}


def test_layers_need_no_rule():
    """Without one, all outputs of `qkv` are one side of a matrix."""
    assert matrices() == FOUND | {"qkv": ((3, 24, 8),), "head": ((1, 11, 8),)}


def test_the_rule_of_the_guide():
    """It takes each part of `qkv` for a matrix."""
    rules = groups.no_matrices(groups.path("head")) | RULES["named"]
    assert matrices(weight_dimension_numbers=rules) == FOUND | {"qkv": ((9, 8, 8),)}


def test_blocks():
    """Adam-mini has one for each word."""
    blocks = groups.layer_blocks(MODEL)["embedding"].weight.array
    assert blocks == groups.BlockAxes((1,))
