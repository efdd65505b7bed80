"""Gradients in microbatches, and per-example gradients."""

from collections.abc import Callable
from time import perf_counter
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import optax.microbatching
from jax import Array

from eqopt.microbatching import (
    AccumulationType,
    clipped_grad,
    micro_grad,
    micro_value_and_grad,
)

from .contestants import Pair
from .harness import race
from .measures import Measure, Measured, Settings


# A model, and a batch of inputs and labels.
Problem = tuple[Any, tuple[Array, Array]]

CALLS = 5
CLIP = 1.0


def is_full(settings: Settings) -> bool:
    """Whether the models have their full size; in tests, they are small."""
    return settings.size >= 10_000_000


def mlp(settings: Settings, rows: int = 128) -> Problem:
    """A multilayer perceptron with the widths 256-1024-1024-10."""
    width = 1024 if is_full(settings) else 8
    model = eqx.nn.MLP(256, 10, width, 2, key=jax.random.key(0))
    return model, _batch(rows, (256,))


def cnn(settings: Settings, rows: int = 64) -> Problem:
    """Three convolutions of 32 x 32 pixels and a linear layer."""
    channels = (3, 16, 32, 64) if is_full(settings) else (3, 2, 2, 4)
    keys = jax.random.split(jax.random.key(0), 4)
    layers: list[Any] = []
    for i in range(3):
        less, more = channels[i : i + 2]
        conv = eqx.nn.Conv2d(less, more, 3, 1 + (i > 0), padding=1, key=keys[i])
        layers += [conv, eqx.nn.Lambda(jax.nn.relu)]
    layers += [eqx.nn.Lambda(_mean_pixel)]
    layers += [eqx.nn.Linear(channels[-1], 10, key=keys[3])]
    rows = rows if is_full(settings) else rows // 16
    return eqx.nn.Sequential(layers), _batch(rows, (3, 32, 32))


def transformer(settings: Settings) -> Problem:
    """Two blocks of width 128 over 64 tokens, which classify the sequence."""
    width, rows = (128, 16) if is_full(settings) else (8, 2)
    tokens = jax.random.randint(jax.random.key(1), (rows, 64), 0, 512)
    return _Transformer(width, jax.random.key(0)), (tokens, _batch(rows, ())[1])


class _Block(eqx.Module):
    norms: list[eqx.nn.LayerNorm]
    attention: eqx.nn.MultiheadAttention
    mlp: eqx.nn.MLP

    def __init__(self, width: int, key: Array):
        key1, key2 = jax.random.split(key)
        self.norms = [eqx.nn.LayerNorm(width) for _ in range(2)]
        self.attention = eqx.nn.MultiheadAttention(4, width, key=key1)
        self.mlp = eqx.nn.MLP(
            width, width, 4 * width, 1, activation=jax.nn.gelu, key=key2
        )

    def __call__(self, x: Array) -> Array:
        y = jax.vmap(self.norms[0])(x)
        x = x + self.attention(y, y, y)
        return x + jax.vmap(self.mlp)(jax.vmap(self.norms[1])(x))


class _Transformer(eqx.Module):
    embedding: eqx.nn.Embedding
    blocks: list[_Block]
    head: eqx.nn.Linear

    def __init__(self, width: int, key: Array):
        keys = jax.random.split(key, 4)
        self.embedding = eqx.nn.Embedding(512, width, key=keys[0])
        self.blocks = [_Block(width, key) for key in keys[1:3]]
        self.head = eqx.nn.Linear(width, 10, key=keys[3])

    def __call__(self, tokens: Array) -> Array:
        x = jax.vmap(self.embedding)(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(jnp.mean(x, axis=0))


def _mean_pixel(image: Array) -> Array:
    return jnp.mean(image, axis=(1, 2))


def _batch(rows: int, shape: tuple[int, ...]) -> tuple[Array, Array]:
    keys = jax.random.split(jax.random.key(2))
    x = jax.random.normal(keys[0], (rows, *shape))
    return x, jax.random.randint(keys[1], (rows,), 0, 10)


def mean_loss(model: Any, x: Array, y: Array) -> Array:
    log_p = jax.nn.log_softmax(jax.vmap(model)(x))
    return -jnp.mean(jnp.take_along_axis(log_p, y[:, None], axis=1))


def plain(model: Any, x: Array, y: Array) -> Any:
    """The gradient of the mean loss, with which all others are compared."""
    return eqx.filter_grad(mean_loss)(model, x, y)


def clipped(model: Any, x: Array, y: Array) -> Any:
    return clipped_grad(mean_loss, CLIP, batch_argnums=(1, 2))(model, x, y)[0]


def microbatched(model: Any, x: Array, y: Array) -> Any:
    """The same in microbatches, for example 16 of 64 examples for a batch of 1024."""
    grad_fn = micro_value_and_grad(
        mean_loss, batch_argnums=(1, 2), microbatch_size=len(x) // 16
    )
    return grad_fn(model, x, y)[1]


def clipped_by_optax(model: Any, x: Array, y: Array) -> Any:
    def clip(grads: Any) -> Any:
        factor = jnp.minimum(1, CLIP / optax.tree.norm(grads))
        return jax.tree.map(lambda g: g * factor, grads)

    return _of_optax(clip, model, x, y)


def squares(model: Any, x: Array, y: Array) -> Any:
    """The sums of per-example gradients and of their squares."""
    return micro_grad(
        mean_loss,
        batch_argnums=(1, 2),
        microbatch_size=16,
        transform_fn=_and_squares,
        accumulator=AccumulationType.SUM,
    )(model, x, y)[0]


def squares_by_optax(model: Any, x: Array, y: Array) -> Any:
    return _of_optax(_and_squares, model, x, y)


def _and_squares(grads: Any) -> tuple[Any, Any]:
    return grads, jax.tree.map(jnp.square, grads)


def _of_optax(
    transform_fn: Callable[[Any], Any], model: Any, x: Array, y: Array
) -> Any:
    params, static = eqx.partition(model, eqx.is_inexact_array)
    return optax.microbatching.micro_grad(
        lambda p, x, y: mean_loss(eqx.combine(p, static), x, y),
        batch_argnums=(1, 2),
        microbatch_size=16,
        transform_fn=transform_fn,
    )(params, x, y)[0]


def differentiating(
    problem: Callable[[Settings], Problem],
    functions: Pair[Callable[..., Any]],
    calls: int = CALLS,
    compares: bool = True,
) -> Measure:
    """Measures a compiled function of a model and a batch.

    **Arguments:**

    - `calls`: the number of calls in a round.
    - `compares`: whether both functions must have equal results.
    """

    def measure(settings: Settings) -> Measured:
        model, batch = problem(settings)

        def compiled(function: Any) -> Any:
            jitted: Any = eqx.filter_jit(function)
            return jitted.lower(model, *batch).compile()

        programs = functions.map(compiled)
        if compares:
            _check_same(programs.map(lambda p: p(model, *batch)))

        def contestant(program: Any) -> Callable[[], list[float]]:
            def sample() -> list[float]:
                seconds = []
                for _ in range(1 + calls):
                    start = perf_counter()
                    jax.block_until_ready(program(model, *batch))
                    seconds.append(perf_counter() - start)
                return seconds[1:]

            return sample

        memory = programs.map(lambda p: p.compiled.memory_analysis())
        params = jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array))
        return Measured(
            race(programs.map(contestant), settings.rounds),
            memory.map(lambda m: m.temp_size_in_bytes),
            sum(p.nbytes for p in params),
        )

    return measure


def _check_same(results: Pair[Any]) -> None:
    leaves = results.map(jax.tree.leaves)
    for ours, theirs in zip(leaves.eqopt, leaves.other, strict=True):
        largest = jnp.max(jnp.abs(theirs))
        if not jnp.max(jnp.abs(ours - theirs)) <= 1e-3 * largest + 1e-6:
            raise RuntimeError("The two disagree: not the same work.")
