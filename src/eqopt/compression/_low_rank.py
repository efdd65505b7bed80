"""Matrices of low rank."""

import math

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float

from .._arguments.fields import static_choice
from .._trees.keys import as_key
from .._types import Key, StaticSize
from ._base import AbstractCompressor, Workers


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
