"""Compressors, their workers, and their use for a whole tree."""

import abc
import functools
import math
from typing import Annotated, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, Shaped, UInt8

from .._arguments.construction import Module
from .._arguments.fields import static_choice
from .._errors import InputError
from .._trees.keys import as_key
from .._trees.leaves import align, flatten_updates, map_parameters
from .._trees.sharding import is_in_shard_map, on_automatic_axes, shardings_of
from .._trees.stored import load, store_like
from .._types import AtLeast, Interval, Key, Params, StaticInteger, StaticSize, Updates
from ..numerics._numerics import max_or_nan


class Workers(Module):
    """The workers along an axis of `jax.shard_map` or `jax.vmap`.

    **Arguments:**

    - `axis_name`: the name of the axis, or several names. `None` means one worker.

    **Raises:**

    A `ValueError` if no axis has this name.
    """

    axis_name: str | tuple[str, ...] | None

    def __check_init__(self) -> None:
        try:
            self.count  # noqa: B018
        except NameError:
            raise InputError(
                f"`axis_name` is {self.axis_name!r}, but no such axis is mapped here. "
                "Call `step` inside `jax.shard_map` or `jax.vmap` over this axis. For "
                "one worker, pass `axis_name=None`."
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


def _leaf(compressor, g, error, memory, workers, decay):
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
    return jnp.stack([x.real, x.imag], axis=-1) if jnp.iscomplexobj(x) else x


def _as(x: Array, dtype: Any) -> Array:
    is_real = not jnp.issubdtype(dtype, jnp.complexfloating)
    return x if is_real else lax.complex(x[..., 0], x[..., 1])


def _real_shape(x: Any) -> jax.ShapeDtypeStruct:
    shape = (*x.shape, 2) if jnp.iscomplexobj(x) else x.shape
    return jax.ShapeDtypeStruct(shape, jnp.float32)


#
# Compressors
#


class AbstractBlocks(AbstractCompressor):
    """A compressor of blocks, in two stages, as a reduce-scatter and an all-gather.

    Each worker is responsible for a share of the array. It receives the codes of this
    share from all workers, and sends the codes of their mean to all workers. The error
    of the second stage is an error of the worker that is responsible: $K$ times, because
    the mean divides by $K$.
    """

    block_size: eqx.AbstractVar[StaticInteger]

    @abc.abstractmethod
    def _encode(
        self, x: Float[Array, "*blocks size"], counts: Int[Array, "*blocks 1"]
    ) -> tuple[UInt8[Array, "*blocks bytes"], Float[Array, "*blocks 1"]]:
        """Codes and scales. After the first `counts` elements, a block has padding."""

    @abc.abstractmethod
    def _decode(
        self, codes: UInt8[Array, "*blocks bytes"], scales: Float[Array, "*blocks 1"]
    ) -> Float[Array, "*blocks size"]: ...

    def mean(
        self, x: Float[Array, "..."], memory: Array | None, workers: Workers
    ) -> tuple[Float[Array, "..."], Float[Array, "..."], Array | None]:
        share = math.ceil(x.size / workers.count)
        # Eight bits are a byte.
        size = 8 * math.ceil(min(int(self.block_size), share) / 8)
        shape = (workers.count, math.ceil(share / size), size)
        padding = math.prod(shape) - x.size
        numbers = jnp.arange(math.prod(shape[:2])).reshape(*shape[:2], 1)
        counts = jnp.clip(x.size - size * numbers, 0, size)
        padded = jnp.pad(x.ravel(), (0, padding)).reshape(shape)
        codes, scales = self._encode(padded, counts)
        whole = lambda y: y.ravel()[: x.size].reshape(x.shape)
        own = self._decode(codes, scales)
        if workers.count == 1:
            return workers.mean(whole(own)), whole(own), memory
        received = self._decode(workers.exchange(codes), workers.exchange(scales))
        mean = received.mean(axis=0)
        here = lax.axis_index(workers.axis_name)
        codes, scales = self._encode(mean, counts[here])
        lost = mean - self._decode(codes, scales)
        own = own - workers.count * workers.only_here(lost)
        result = self._decode(workers.gather(codes), workers.gather(scales))
        return whole(result), whole(own), memory


class Int8Blocks(AbstractBlocks):
    r"""Integers of 8 bits, and a scale for each block of neighbouring elements.

    With the largest modulus $a$ of a block, an element $x$ is sent as the integer
    nearest to $127\,x/a$. A mean sends a quarter of the bytes of a mean in float32.

    **Arguments:**

    - `block_size`: the largest number of elements in a block, a positive integer,
        rounded up to a multiple of 8. Defaults to 256.

    **Raises:**

    A `ValueError` if `block_size` is something else.
    """

    block_size: StaticSize = static_choice(static=True, default=256)

    def _encode(self, x, counts):
        scales = max_or_nan(jnp.abs(x), axis=-1, keepdims=True) / 127
        codes = jnp.clip(jnp.round(x / _divisors(scales)), -127, 127)
        return lax.bitcast_convert_type(codes.astype(jnp.int8), jnp.uint8), scales

    def _decode(self, codes, scales):
        return lax.bitcast_convert_type(codes, jnp.int8).astype(scales.dtype) * scales


class Float8Blocks(AbstractBlocks):
    r"""Floats of 8 bits, and a scale for each block of neighbouring elements.

    With the largest modulus $a$ of a block, an element $x$ is sent as $448\,x / a$ in
    JAX's `float8_e4m3fn`. Small numbers have smaller errors than with
    [`eqopt.compression.Int8Blocks`][], and large ones have larger errors.

    **Arguments:**

    - `block_size`: as in [`eqopt.compression.Int8Blocks`][]. Defaults to 256.

    **Raises:**

    A `ValueError` if `block_size` is something else.
    """

    block_size: StaticSize = static_choice(static=True, default=256)

    def _encode(self, x, counts):
        scales = max_or_nan(jnp.abs(x), axis=-1, keepdims=True) / 448
        codes = jnp.clip(x / _divisors(scales), -448, 448).astype(jnp.float8_e4m3fn)
        return lax.bitcast_convert_type(codes, jnp.uint8), scales

    def _decode(self, codes, scales):
        codes = lax.bitcast_convert_type(codes, jnp.float8_e4m3fn)
        return codes.astype(scales.dtype) * scales


class Sign(AbstractBlocks):
    """One bit for each element, its sign, and a scale for each block: a majority vote.

    The scale is the mean modulus of a block. The mean of all signs, weighted by these
    scales, is sent in the same form: the sign of the majority. A mean sends some
    1/31 of the bytes of a mean in float32.

    **Arguments:**

    - `block_size`: as in [`eqopt.compression.Int8Blocks`][]. Defaults to 1024.

    **Raises:**

    A `ValueError` if `block_size` is something else.

    ??? cite "References"

        ```bibtex
        @inproceedings{karimireddy2019error,
            author = {Karimireddy, Sai Praneeth and Rebjock, Quentin and Stich, Sebastian
                      U. and Jaggi, Martin},
            title = {Error Feedback Fixes {SignSGD} and other Gradient Compression
                     Schemes},
            booktitle = {International Conference on Machine Learning},
            year = {2019},
        }

        @inproceedings{bernstein2019majority,
            author = {Bernstein, Jeremy and Zhao, Jiawei and Azizzadenesheli, Kamyar and
                      Anandkumar, Anima},
            title = {{signSGD} with Majority Vote is Communication Efficient and Fault
                     Tolerant},
            booktitle = {International Conference on Learning Representations},
            year = {2019},
        }
        ```
    """

    block_size: StaticSize = static_choice(static=True, default=1024)

    def _encode(self, x, counts):
        # In a mean of signs, padding is not zero.
        places = lax.broadcasted_iota(counts.dtype, x.shape, x.ndim - 1)
        sizes = jnp.where(places < counts, jnp.abs(x), 0)
        scales = jnp.sum(sizes, axis=-1, keepdims=True)
        scales = scales / jnp.maximum(counts, 1).astype(x.dtype)
        return jnp.packbits(x >= 0, axis=-1), scales

    def _decode(self, codes, scales):
        bits = jnp.unpackbits(codes, axis=-1)
        return jnp.where(bits == 1, scales, -scales)


def _divisors(scales: Float[Array, "..."]) -> Float[Array, "..."]:
    return jnp.where(scales == 0, 1, scales)


class TopK(AbstractCompressor):
    r"""The largest numbers of each array, by modulus.

    Each worker sends a fraction $f$ of its numbers, at least one, with their positions:
    8 bytes for each, to all other workers. Numbers that a worker does not send count as
    zeros.

    **Arguments:**

    - `fraction`: $f \in (0, 1]$, a Python number. Defaults to 0.01.

    **Raises:**

    A `ValueError` if `fraction` is something else.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{stich2018sparsified,
            author = {Stich, Sebastian U. and Cordonnier, Jean-Baptiste and Jaggi,
                      Martin},
            title = {Sparsified {SGD} with Memory},
            booktitle = {Advances in Neural Information Processing Systems},
            year = {2018},
        }
        ```
    """

    fraction: Annotated[float, Interval(0, 1, includes_low=False)] = static_choice(
        static=True, default=0.01
    )

    def mean(
        self, x: Float[Array, "..."], memory: Array | None, workers: Workers
    ) -> tuple[Float[Array, "..."], Float[Array, "..."], Array | None]:
        count = max(1, round(self.fraction * x.size))
        mean, own = _largest(x.reshape(1, -1), count, workers)
        return mean.reshape(x.shape), own.reshape(x.shape), memory


class DCTTopK(AbstractCompressor):
    """The largest coefficients of a cosine transform, as in DeMo.

    The last two axes of an array (the only one of a vector) are cut into chunks: along
    an axis, of the largest divisor of its size that is at most `chunk_size`. Of the
    orthonormal discrete cosine transform of each chunk, a worker sends the $k$ largest
    coefficients with their positions, 4 bytes and 2, to all other workers.

    For [DeMo](https://arxiv.org/abs/2411.19870), use it with
    `decay=0.999`, and `eqopt.SignSGD` as the inner optimizer. DeMo divides the sum of a
    coefficient by the number of workers that sent it; here, it is divided by the number
    of all workers, so that nothing is lost or counted twice.

    !!! example

        ```python
        compressor = eqopt.compression.DCTTopK(32, 64)
        demo = eqopt.CompressedMean(eqopt.SignSGD(1e-3), "data", compressor, 0.999)
        ```

    **Arguments:**

    - `k`: the number of coefficients of each chunk, a positive integer. Chunks with
        fewer send all. Defaults to 32.
    - `chunk_size`: a positive integer, at most 256. Defaults to 64.

    **Raises:**

    A `ValueError` if an argument is something else.

    ??? cite "Reference"

        ```bibtex
        @article{peng2024demo,
            author = {Peng, Bowen and Quesnelle, Jeffrey and Kingma, Diederik P.},
            title = {{DeMo}: Decoupled Momentum Optimization},
            journal = {arXiv:2411.19870},
            year = {2024},
        }
        ```
    """

    k: StaticSize = static_choice(static=True, default=32)
    chunk_size: Annotated[StaticInteger, AtLeast(1, at_most=256)] = static_choice(
        static=True, default=64
    )

    def mean(
        self, x: Float[Array, "..."], memory: Array | None, workers: Workers
    ) -> tuple[Float[Array, "..."], Float[Array, "..."], Array | None]:
        m, n = (1, 1, *x.shape)[-2:]
        rows, columns = (_divisor(size, int(self.chunk_size)) for size in (m, n))
        left, right = (jnp.asarray(_dct(size), x.dtype) for size in (rows, columns))
        cut = (-1, m // rows, rows, n // columns, columns)
        einsum = functools.partial(jnp.einsum, precision="highest")
        coefficients = einsum("ij,sajbk,lk->sabil", left, x.reshape(cut), right)
        chunks = coefficients.reshape(-1, rows * columns)
        both = _largest(chunks, min(int(self.k), rows * columns), workers)
        both = (y.reshape(coefficients.shape) for y in both)
        mean, own = (einsum("ij,sabil,lk->sajbk", left, y, right) for y in both)
        return mean.reshape(x.shape), own.reshape(x.shape), memory


def _largest(x: Array, k: int, workers: Workers) -> tuple[Array, Array]:
    """The mean of the largest `k` numbers of each row, and the ones of this worker."""
    _, places = lax.top_k(jnp.abs(x), k)
    values = jnp.take_along_axis(x, places, axis=1)
    rows = jnp.arange(x.shape[0])[:, None]
    own = jnp.zeros_like(x).at[rows, places].set(values)
    if workers.axis_name is None:
        return own, own
    narrow = jnp.uint16 if x.shape[1] <= 2**16 else jnp.int32
    values = workers.gather(values)
    places = workers.gather(places.astype(narrow)).astype(jnp.int32)
    total = jnp.zeros(x.shape, x.dtype).at[rows, places].add(values)
    return total / workers.count, own


def _divisor(n: int, most: int) -> int:
    """The largest divisor of `n` that is at most `most`."""
    return max(d for d in range(1, min(n, most) + 1) if n % d == 0)


def _dct(n: int) -> np.ndarray:
    """The orthonormal matrix of the discrete cosine transform, type II."""
    i, j = np.arange(n)[:, None], np.arange(n)
    basis = math.sqrt(2 / n) * np.cos(math.pi * i * (2 * j + 1) / (2 * n))
    basis[0] /= math.sqrt(2)
    return basis


class PowerSGD(AbstractCompressor):
    r"""The mean as a matrix of low rank, from one step of a power iteration.

    An array is an $m \times n$ matrix $M_k$ of worker $k$: $m$ is its first axis, and
    $n$ is all other axes together. With the $n \times r$ matrix $Q$ of the last step,

    $$\begin{aligned}
      P &= \operatorname{orthogonal}\Big(\frac1K \sum_k M_k Q\Big) &
      Q_k &= M_k^T P &
      Q &\leftarrow \frac1K \sum_k Q_k
    \end{aligned}$$

    and the mean is $P Q^T$, of which $P Q_k^T$ is the part of worker $k$. Two sums are
    sent, of $r\,(m + n)$ numbers together. Vectors, and matrices with
    $2 r\,(m + n) > m n$, are sent in full.

    **Arguments:**

    - `rank`: $r \ge 1$, an integer. Defaults to 4.
    - `key`: a random key or a seed for the first $Q$. Defaults to 0.

    **Raises:**

    A `ValueError` if `rank` is something else.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{vogels2019powersgd,
            author = {Vogels, Thijs and Karimireddy, Sai Praneeth and Jaggi, Martin},
            title = {{PowerSGD}: Practical Low-Rank Gradient Compression for Distributed
                     Optimization},
            booktitle = {Advances in Neural Information Processing Systems},
            year = {2019},
        }
        ```
    """

    rank: StaticSize = static_choice(static=True, default=4)
    key: Key = 0

    def _sides(self, shape: tuple[int, ...]) -> tuple[int, int] | None:
        """The two sides of a matrix; `None` for an array that is sent in full."""
        if len(shape) < 2:
            return None
        m, n = shape[0], math.prod(shape[1:])
        return None if 2 * self.rank * (m + n) > m * n else (m, n)

    def init(self, x: Float[Array, "..."] | jax.ShapeDtypeStruct) -> Array | None:
        sides = self._sides(x.shape)
        if sides is None:
            return None
        return jr.normal(as_key(self.key), (sides[1], int(self.rank)), jnp.float32)

    def mean(
        self, x: Float[Array, "..."], memory: Array | None, workers: Workers
    ) -> tuple[Float[Array, "..."], Float[Array, "..."], Array | None]:
        sides = self._sides(x.shape)
        if sides is None or memory is None:
            return workers.mean(x), x, memory
        matrix = x.reshape(sides)
        dot = lambda a, b: jnp.matmul(a, b, precision="highest")
        p, _ = jnp.linalg.qr(workers.mean(dot(matrix, memory.astype(x.dtype))))
        own = dot(matrix.T, p)
        q = workers.mean(own)
        part = lambda q: dot(p, q.T).reshape(x.shape)
        return part(q), part(own), q.astype(memory.dtype)
