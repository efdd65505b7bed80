"""The largest numbers, of an array or of its cosine transform."""

import math
from typing import Annotated

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from .._arguments.fields import static_choice
from .._types import AtLeast, Interval, StaticInteger, StaticSize
from ._base import AbstractCompressor, Workers


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
        product = lambda a, y, b: jnp.einsum(
            "ij,sajbk,lk->sabil", a, y, b, precision="highest"
        )
        inverse = lambda a, y, b: jnp.einsum(
            "ij,sabil,lk->sajbk", a, y, b, precision="highest"
        )
        coefficients = product(left, x.reshape(cut), right)
        chunks = coefficients.reshape(-1, rows * columns)
        both = _largest(chunks, min(int(self.k), rows * columns), workers)
        mean, own = (
            inverse(left, y.reshape(coefficients.shape), right).reshape(x.shape)
            for y in both
        )
        return mean, own, memory


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
