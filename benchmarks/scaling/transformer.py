"""A small decoder-only transformer in Equinox, to train on several devices."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Int, PRNGKeyArray

import eqopt


class Shape(NamedTuple):
    """The size of a transformer and of its inputs."""

    vocabulary: int = 64
    width: int = 32
    heads: int = 8
    hidden: int = 64
    layers: int = 2
    length: int = 16


class Block(eqx.Module):
    attention_norm: eqx.nn.RMSNorm
    query: eqx.nn.Linear
    key: eqx.nn.Linear
    value: eqx.nn.Linear
    output: eqx.nn.Linear
    mlp_norm: eqx.nn.RMSNorm
    gate: eqx.nn.Linear
    up: eqx.nn.Linear
    down: eqx.nn.Linear
    heads: int = eqx.field(static=True)

    def __init__(self, shape: Shape, key: PRNGKeyArray):
        keys = iter(jr.split(key, 7))
        d, h = shape.width, shape.hidden
        linear = lambda n, m: eqx.nn.Linear(n, m, use_bias=False, key=next(keys))
        self.attention_norm, self.mlp_norm = eqx.nn.RMSNorm(d), eqx.nn.RMSNorm(d)
        self.query, self.key, self.value = linear(d, d), linear(d, d), linear(d, d)
        self.output = linear(d, d)
        self.gate, self.up, self.down = linear(d, h), linear(d, h), linear(h, d)
        self.heads = shape.heads

    def __call__(self, x: Float[Array, "length width"]) -> Float[Array, "length width"]:
        y = jax.vmap(self.attention_norm)(x)
        split = lambda layer: jax.vmap(layer)(y).reshape(len(x), self.heads, -1)
        attended = jax.nn.dot_product_attention(
            split(self.query), split(self.key), split(self.value), is_causal=True
        )
        x = x + jax.vmap(self.output)(attended.reshape(x.shape))
        y = jax.vmap(self.mlp_norm)(x)
        hidden = jax.nn.silu(jax.vmap(self.gate)(y)) * jax.vmap(self.up)(y)
        return x + jax.vmap(self.down)(hidden)


class Transformer(eqx.Module):
    """A transformer with pre-normalization, gated MLPs and learned positions."""

    embedding: Float[Array, "vocabulary width"]
    positions: Float[Array, "length width"]
    blocks: list[Block]
    norm: eqx.nn.RMSNorm
    head: eqx.nn.Linear

    def __init__(self, shape: Shape, key: PRNGKeyArray):
        first, second, third, *keys = jr.split(key, 3 + shape.layers)
        width = shape.width
        self.embedding = jr.normal(first, (shape.vocabulary, width)) / width**0.5
        self.positions = jr.normal(second, (shape.length, width)) / width**0.5
        self.blocks = [Block(shape, key) for key in keys]
        self.norm = eqx.nn.RMSNorm(width)
        self.head = eqx.nn.Linear(width, shape.vocabulary, use_bias=False, key=third)

    def __call__(self, tokens: Int[Array, " length"]) -> Float[Array, "length words"]:
        x = self.embedding[tokens] + self.positions[: len(tokens)]
        for block in self.blocks:
            x = block(x)
        return jax.vmap(self.head)(jax.vmap(self.norm)(x))


def loss(model: Transformer, tokens: Int[Array, "batch length"]) -> Float[Array, ""]:
    """The mean cross-entropy of the next tokens."""
    logits = jax.vmap(model)(tokens[:, :-1])
    losses = eqopt.losses.softmax_cross_entropy_with_integer_labels(
        logits, tokens[:, 1:]
    )
    return jnp.mean(losses)


def batch_of(shape: Shape, size: int, step: int = 0) -> Int[Array, "size length+1"]:
    """Arithmetic progressions modulo the vocabulary: the next token can be learned."""
    start, slope = jr.randint(jr.key(step), (2, size, 1), 0, shape.vocabulary)
    return (start + slope * jnp.arange(shape.length + 1)[None]) % shape.vocabulary
