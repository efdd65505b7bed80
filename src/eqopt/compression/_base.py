"""The base class of compressors, and their use for all arrays of a tree."""

import abc
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from .._arguments.construction import Module
from .._trees.leaves import align, flatten_updates, map_parameters
from .._trees.sharding import on_automatic_axes, shardings_of
from .._trees.stored import load, store_like
from .._types import Params, Scalar, Updates
from ._workers import Workers


class AbstractCompressor(Module):
    """A way to compute the mean of an array over workers, and to send fewer bytes.

    Subclass it and implement `mean`, and `init` if it needs memory.
    """

    def init(self, x: Float[Array, "..."] | jax.ShapeDtypeStruct) -> Array | None:
        """What all workers remember about an array between steps, or `None`.

        **Arguments:**

        - `x`: an array with the same shape and dtype.
        """
        return None

    @abc.abstractmethod
    def mean(
        self, x: Float[Array, "..."], memory: Array | None, workers: Workers
    ) -> tuple[Float[Array, "..."], Float[Array, "..."], Array | None]:
        """The compressed mean over all workers.

        **Arguments:**

        - `x`: the array of this worker, in at least float32.
        - `memory`: the result of `init`, or of the last call.
        - `workers`: all workers.

        **Returns:**

        The mean, equal for all workers; the part of `x` that it contains, such that the
        mean of these parts is this mean, except for rounding; and the new memory.
        """


def memory_like(compressor: AbstractCompressor, params: Params) -> Params:
    """What is remembered about each parameter."""
    return map_parameters(lambda x: compressor.init(_real_shape(x)), params)


def compressed(
    compressor: AbstractCompressor,
    updates: Updates,
    error: Params,
    memory: Params,
    workers: Workers,
    decay: Any = 1.0,
) -> tuple[Updates, Params, Params]:
    """The means of `updates` and the errors, and the new errors and memory."""
    arguments = compressor, updates, error, memory, workers, decay
    shardings = shardings_of((updates, error, memory))
    return on_automatic_axes(_compressed, *arguments, shardings=shardings)


def _compressed(compressor, updates, error, memory, workers, decay):
    leaves, treedef = flatten_updates(updates)
    errors = align(treedef, load(error), "state.error", updates)
    memories = align(treedef, memory, "state.memory", updates)
    rows = zip(leaves, errors, memories, strict=True)
    found = [
        (None, e, m) if g is None else _leaf(compressor, g, e, m, workers, decay)
        for g, e, m in rows
    ]
    means, errors, memories = zip(*found, strict=True) if found else ((), (), ())
    return (
        treedef.unflatten(means),
        store_like(error, treedef.unflatten(errors)),
        treedef.unflatten(memories),
    )


def _leaf(
    compressor: AbstractCompressor,
    g: Array,
    error: Array,
    memory: Array | None,
    workers: Workers,
    decay: Scalar | float,
) -> tuple[Array, Array, Array | None]:
    x = _as_real(jnp.asarray(decay, error.dtype) * error + g.astype(error.dtype))
    if x.size == 0:  # no compressor has to know how to send nothing
        return workers.mean(g), error, memory
    mean, own, memory = compressor.mean(x, memory, workers)
    like = lambda x: _as(x, error.dtype).reshape(g.shape)
    mean, rest = like(mean), like(x - own)
    rounded = mean.astype(g.dtype)
    # What is rounded away is an error, too.
    return rounded, rest + (mean - rounded.astype(mean.dtype)), memory


def _as_real(x: Array) -> Array:
    """Real and imaginary parts along a last axis, if `x` is complex."""
    is_real = not jnp.issubdtype(x.dtype, jnp.complexfloating)
    return x if is_real else jnp.stack([x.real, x.imag], axis=-1)


def _as(x: Array, dtype: Any) -> Array:
    is_real = not jnp.issubdtype(dtype, jnp.complexfloating)
    return x if is_real else lax.complex(x[..., 0], x[..., 1])


def _real_shape(x: Any) -> jax.ShapeDtypeStruct:
    is_real = not jnp.issubdtype(x.dtype, jnp.complexfloating)
    shape = x.shape if is_real else (*x.shape, 2)
    return jax.ShapeDtypeStruct(shape, jnp.float32)
