"""Text of Python's standard library: bytes for a transformer, and word embeddings."""

import collections
import functools
import re

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from eqopt.losses import softmax_cross_entropy_with_integer_labels as cross_entropy

from ..scaling.transformer import Shape, Transformer
from .text import in_bytes, source
from .workload import Workload


SHAPE = Shape(vocabulary=128, width=32, heads=4, hidden=64, layers=2, length=32)


@functools.cache
def transformer() -> Workload:
    size = SHAPE.length + 1
    codes = in_bytes()
    pieces = codes[: len(codes) // size * size].reshape(-1, size)
    is_held_out = np.arange(len(pieces)) % 200 == 0

    def loss(model, tokens):
        return jnp.mean(cross_entropy(model(tokens[:-1]), tokens[1:]))

    return Workload(
        "Language",
        "A transformer of two layers reads the source of Python's standard library, "
        "byte by byte",
        lambda key: Transformer(SHAPE, key),
        loss,
        pieces[~is_held_out],
        pieces[is_held_out][:128],
        steps=300,
        target=2.334,
        batch=16,
    )


WORDS, NEAR, SMALLEST = 300, 4, 3


class Embeddings(eqx.Module):
    """A vector and a bias for each word, and others for each word as a neighbour."""

    words: Float[Array, "words size"]
    contexts: Float[Array, "words size"]
    word_bias: Float[Array, " words"]
    context_bias: Float[Array, " words"]

    def __init__(self, size, key):
        draw = lambda key: jr.normal(key, (WORDS, size)) / size**0.5
        self.words, self.contexts = map(draw, jr.split(key))
        self.word_bias = self.context_bias = jnp.zeros(WORDS)

    def __call__(self, word, context):
        product = self.words[word] @ self.contexts[context]
        return product + self.word_bias[word] + self.context_bias[context]


@functools.cache
def pairs() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pairs of frequent words, and how often they occur near each other."""
    words = re.findall(r"[A-Za-z]+|[^\sA-Za-z]", source().lower())
    most = [word for word, _ in collections.Counter(words).most_common(WORDS)]
    number = {word: i for i, word in enumerate(sorted(most))}
    ids = np.array([number.get(word, -1) for word in words])
    counts = np.zeros((WORDS, WORDS), np.float32)
    for distance in range(1, NEAR + 1):
        left, right = ids[:-distance], ids[distance:]
        known = (left >= 0) & (right >= 0)
        for a, b in ((left, right), (right, left)):
            np.add.at(counts, (a[known], b[known]), 1 / distance)
    word, context = np.nonzero(counts >= SMALLEST)
    order = np.random.default_rng(0).permutation(len(word))
    word, context = word[order].astype(np.int32), context[order].astype(np.int32)
    return word, context, counts[word, context]


@functools.cache
def factorisation() -> Workload:
    found = pairs()
    cut = len(found[0]) // 10

    def loss(model, pair):
        word, context, count = pair
        weight = jnp.minimum(count / 100, 1) ** 0.75
        return weight * (model(word, context) - jnp.log(count)) ** 2

    return Workload(
        "Embeddings",
        "Vectors of 16 numbers for 300 words whose products say how often two stand "
        "near each other; a step sees 256 pairs, so most rows have no gradient",
        lambda key: Embeddings(16, key),
        loss,
        tuple(x[cut:] for x in found),
        tuple(x[:cut][:2000] for x in found),
        steps=800,
        target=0.1857,
        batch=256,
    )
