"""The base class of compressors, their workers, and their use for a whole tree."""

import abc
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Shaped

from .._arguments.construction import Module
from .._errors import InputError
from .._trees.leaves import align, flatten_updates, map_parameters
from .._trees.sharding import is_in_shard_map, on_automatic_axes, shardings_of
from .._trees.stored import load, store_like
from .._types import Params, Scalar, Updates


class Workers(Module):
    """The workers along an axis of `jax.shard_map` or `jax.vmap`.

    **Arguments:**

    - `axis_name`: the name of the axis, or several names. `None` means one worker.
    - `owner`: the class to name in errors. Defaults to `"Workers"`.

    **Raises:**

    A `ValueError` if no axis has this name.
    """

    axis_name: str | tuple[str, ...] | None
    owner: str = "Workers"

    def __check_init__(self) -> None:
        try:
            self.count  # noqa: B018
        except NameError:
            raise InputError(
                self.owner,
                f"`axis_name` is {self.axis_name!r}, but no such axis is mapped here. "
                "Call `step` inside `jax.shard_map` or `jax.vmap` over this axis. For "
                "one worker, pass `axis_name=None`.",
            ) from None

    @property
    def count(self) -> int:
        """The number of workers, $K$."""
        return 1 if self.axis_name is None else lax.axis_size(self.axis_name)

    def mean(self, x: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
        """The mean over all workers."""
        return x if self.axis_name is None else lax.pmean(x, self.axis_name)

    def gather(self, x: Shaped[Array, "..."]) -> Shaped[Array, "workers ..."]:
        """The arrays of all workers, equal for all of them."""
        if self.axis_name is None:
            return x[None]
        # `shard_map` has to know that the result is the same for all. `vmap` does not,
        # and in JAX 0.10 it cannot gather in this way.
        to = "invarying" if is_in_shard_map() else "varying"
        return lax.all_gather(x, self.axis_name, to=to)

    def exchange(self, x: Shaped[Array, "workers ..."]) -> Shaped[Array, "workers ..."]:
        """Sends row $i$ to worker $i$; row $j$ of the result is from worker $j$."""
        if self.axis_name is None:
            return x
        return lax.all_to_all(x, self.axis_name, 0, 0)

    def only_here(self, x: Shaped[Array, "..."]) -> Shaped[Array, "workers ..."]:
        """`x` in the row of this worker, and zeros in the rows of the others."""
        if self.axis_name is None:
            return x[None]
        rows = jnp.arange(self.count).reshape(-1, *[1] * x.ndim)
        return jnp.where(rows == lax.axis_index(self.axis_name), x[None], 0)


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
