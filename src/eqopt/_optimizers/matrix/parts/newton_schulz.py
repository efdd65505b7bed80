"""Newton-Schulz iterations: published coefficients, and orthogonal matrices by products.

The polynomial of each step keeps the singular vectors of a matrix, and moves its singular
values towards one.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, DTypeLike, Float, Inexact

from ...._errors import InputError
from ...._matrices import AbstractWhole
from ....numerics._numerics import abs_sq
from .eigenbasis import Matrix, gram, short_side


Name: TypeAlias = Literal[
    "standard",
    "dion",
    "polar_express",
    "polar_express_8",
    "cans",
    "aol",
    "cubic",
    "deepseek",
    "simple",
]
Coefficients: TypeAlias = Name | tuple[Any, ...] | Array | np.ndarray


class Table(NamedTuple):
    """Rows $(a, b, c)$, one for each step.

    **Attributes:**

    - `rows`: the coefficients.
    - `norm_factor`: a factor for the Frobenius norm at the start. If the polynomial is
        above 1 at 1, singular values that exceed 1 by a rounding error would diverge
        without it.
    - `repeats_last`: whether steps beyond the last row repeat it. Otherwise, the rows
        start again.
    - `is_coarse`: whether the authors iterate in bfloat16. The rows of CANS diverge in
        it: their first polynomial is 2 at 1, and the second has slope 13 at 2.
    """

    rows: tuple[tuple[float, float, float], ...] | Float[Array, "steps 3"]
    norm_factor: float = 1.0
    repeats_last: bool = False
    is_coarse: bool = False


STANDARD = (3.4445, -4.7750, 2.0315)
_QUINTIC = (
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
)
# Computed with a safety margin of 0.02, for which the norm factor compensates.
_POLAR_EXPRESS = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)
# Computed with a safety margin of 0.01, which these rows already include.
_POLAR_EXPRESS_8 = (
    (8.2051, -22.9019, 16.4607),
    (4.0664, -2.8612, 0.5184),
    (3.9096, -2.8234, 0.5250),
    (3.2856, -2.4153, 0.4853),
    (2.2779, -1.6198, 0.3985),
    (1.8726, -1.2307, 0.3585),
    (1.8564, -1.2132, 0.3568),
    (1.875, -1.25, 0.375),
)
_CANS = (
    (8.4703, -25.1081, 18.6293),
    (4.1828, -3.1087, 0.5806),
    (3.9619, -2.9541, 0.5630),
    (3.2866, -2.4647, 0.5074),
    (2.2737, -1.6447, 0.4162),
)
_AOL = (
    (4.0098, -7.0585, 2.4635),
    (3.4585, -5.5479, 2.5959),
    (2.7573, -3.2939, 1.4254),
    (2.7215, -3.0494, 1.3169),
)
_CUBIC = (
    (3.3656576, -3.3420992, 0.0),
    (2.5744352, -1.4957376, 0.0),
    (2.5368962, -1.4312570, 0.0),
    (2.4418906, -1.2764040, 0.0),
    (2.2230472, -0.9630650, 0.0),
)
_SIMPLE = (2.0, -1.5, 0.5)

TABLES: dict[str, Table] = {
    "standard": Table((STANDARD,) * 5, is_coarse=True),
    "dion": Table(_QUINTIC, is_coarse=True),
    "polar_express": Table(_POLAR_EXPRESS, 1.02, repeats_last=True, is_coarse=True),
    "polar_express_8": Table(_POLAR_EXPRESS_8, repeats_last=True),
    "cans": Table(_CANS, repeats_last=True),
    "aol": Table(_AOL, is_coarse=True),
    "cubic": Table(_CUBIC),
    "deepseek": Table(
        (STANDARD,) * 8 + (_SIMPLE,) * 2, repeats_last=True, is_coarse=True
    ),
    "simple": Table((_SIMPLE,) * 12, is_coarse=True),
}


def rows_of(coefficients: Any, steps: int | None) -> Table:
    """A table with the coefficients of all steps."""
    if isinstance(coefficients, str):
        table = TABLES[coefficients]
    else:
        rows = jnp.asarray(coefficients, float)
        if rows.ndim == 1:
            return Table(jnp.tile(rows, (5 if steps is None else steps, 1)))
        table = Table(rows)
    if steps is None:
        return table
    rows, order = jnp.asarray(table.rows, float), np.arange(steps)
    n = len(rows)
    order = np.minimum(order, n - 1) if table.repeats_last else order % n
    return table._replace(rows=rows[order])


def iterate(
    x: Matrix,
    rows: Float[Array, "*steps 3"],
    steps: int,
    dtype: DTypeLike | None,
    coarse_dtype: DTypeLike | None,
) -> Matrix:
    """The iteration from `x` on, in `dtype` on a CPU, and in `coarse_dtype` elsewhere."""
    # A single row needs no lookup in the loop, so there is less to compile.
    is_one = rows.ndim == 1
    fixed, xs, length = (tuple(rows), None, steps) if is_one else (None, rows, None)
    step = lambda x, row: (polynomial(x, *(fixed or row)), None)
    # A loop is compiled once, not once per step.
    loop = lambda x, unroll=1: lax.scan(step, x, xs, length, unroll=unroll)[0]
    is_coarse = has_16_bits(x.dtype if coarse_dtype is None else coarse_dtype)
    if dtype == coarse_dtype and not is_coarse:
        return in_dtype(dtype, loop, x)
    # On a GPU, two steps in 16 bits are one round of the loop: the result of a single one
    # would be computed elsewhere, and then copied.
    on_gpu = functools.partial(loop, unroll=2 if is_coarse else 1)
    return lax.platform_dependent(
        x,
        cpu=lambda x: in_dtype(dtype, loop, x),
        tpu=lambda x: in_dtype(coarse_dtype, loop, x),
        default=lambda x: in_dtype(coarse_dtype, on_gpu, x),
    )


def has_16_bits(dtype: DTypeLike) -> bool:
    """Whether it is bfloat16 or float16, whose products round no factor first."""
    return jnp.finfo(dtype).bits == 16


def in_dtype(dtype: DTypeLike | None, iterate: Callable, x: Matrix) -> Matrix:
    """`iterate(x)`, computed in `dtype`. Complex matrices keep their dtype."""
    if dtype is None or jnp.iscomplexobj(x):
        return iterate(x)
    return iterate(x.astype(dtype)).astype(x.dtype)


def polynomial(x, a, b, c):
    """$(a I + b A + c A^2) X$ with $A = X X^*$.

    If $X$ has more rows than columns, this is $X (a I + b A + c A^2)$ with $A = X^* X$:
    the same matrix, at a lower cost.
    """
    real = jnp.finfo(x.dtype).dtype
    a, b, c = (number.astype(real).astype(x.dtype) for number in (a, b, c))
    side = short_side(x.shape)
    square = gram(x, side)
    rest = b * square + c * (square @ square)
    if has_16_bits(x.dtype):
        # The sum below would be another pass over `x`, and another copy of it.
        return times_side(a * jnp.eye(len(rest), dtype=x.dtype) + rest, x, side)
    # An accelerator rounds the factors of products, so this keeps small singular values:
    # otherwise, most of the result for a low rank would be noise.
    return a * x + times_side(rest, x, side)


def times_side(factor: Inexact[Array, "k k"], x: Matrix, side: int) -> Matrix:
    r"""$FX$ for the rows, $X F^\top$ for the columns, with $F$ as in `gram(x, side)`.

    The matrix itself is not transposed, which would be another pass over it.
    """
    return x @ factor.T if side else factor @ x


Scale: TypeAlias = Literal["none", "shape", "spectral", "unit_rms", "match_rms"]

# The factors for orthogonal matrices with m outputs and n inputs.
SCALES = {
    "none": lambda m, n: 1.0,
    "shape": lambda m, n: math.sqrt(max(1, m / n)),
    "spectral": lambda m, n: math.sqrt(max(m, n)),
    "unit_rms": lambda m, n: math.sqrt(m / n),
    "match_rms": lambda m, n: 0.2 * math.sqrt(max(m, n)),
}

# This is added to the norm that the iteration divides by.
NS_EPS = 1e-7


class NewtonSchulz(AbstractWhole):
    """Makes a matrix orthogonal by a Newton-Schulz iteration.

    **Attributes:**

    - `rows`: the coefficients of each step.
    - `norm_factor`: a factor for the Frobenius norm, before $X$ is divided by it.
    - `ns_dtype`: the dtype of the iteration, if it is given.
    - `is_coarse`: whether float32 matrices are iterated in bfloat16 on accelerators.
    - `by_gram`: whether to iterate only on $X X^*$.
    - `restarts`: with `by_gram`, the steps before which $X X^*$ is computed again.
    """

    rows: Float[Array, "steps 3"]
    norm_factor: Float[Array, ""]
    ns_dtype: DTypeLike | None = eqx.field(static=True)
    is_coarse: bool = eqx.field(static=True)
    by_gram: bool = eqx.field(static=True, default=False)
    restarts: tuple[int, ...] = eqx.field(static=True, default=())

    def of_whole(self, x: Matrix, eps: Any = NS_EPS) -> Matrix:
        squares = jnp.sum(abs_sq(x))
        norm = jnp.sqrt(jnp.where(squares > 0, squares, 1))
        x = x / (norm * self.norm_factor + eps).astype(x.dtype)
        # On the gram matrix of a square matrix, the products would not be smaller.
        if self.by_gram and x.shape[0] != x.shape[1]:
            return in_dtype(self.ns_dtype, self._by_gram, x)
        is_coarse = self.is_coarse and self.ns_dtype is None and x.dtype == jnp.float32
        coarse_dtype = jnp.bfloat16 if is_coarse else self.ns_dtype
        return iterate(x, self.rows, len(self.rows), self.ns_dtype, coarse_dtype)

    def _by_gram(self, x: Matrix) -> Matrix:
        r"""With $R = X X^*$, all products except two involve only the short side."""
        side = short_side(x.shape)
        one = jnp.eye(x.shape[side], dtype=x.dtype)
        q, r = one, gram(x, side)
        for i in range(len(self.rows)):
            if i in self.restarts:
                x = times_side(q, x, side)
                q, r = one, gram(x, side)
            a, b, c = (z.astype(x.dtype) for z in self.rows[i])
            s = a * one + b * r + c * (r @ r)
            q, r = s @ q, s @ r @ s
        return times_side(q, x, side)


def check_rows(owner: Any, name: str = "coefficients") -> None:
    """Raises unless there are three coefficients, or three for each of several steps."""
    given = getattr(owner, name)
    if isinstance(given, str):
        return
    # This creates no arrays: they would start JAX before `jax.distributed` does.
    shape = jax.eval_shape(lambda x: jnp.asarray(x, float), given).shape
    if len(shape) not in (1, 2) or shape[-1] != 3 or shape[0] == 0:
        raise InputError(
            f"`{name}` must have shape (3,), or (steps, 3) for one row per step, but has "
            f"shape {shape}."
        )


def check_iteration(owner: Any, name: str = "ns_dtype") -> None:
    """Raises if `owner` has other coefficients than an iteration has, or if they diverge.

    `name` is the field with the dtype of the iteration.
    """
    check_rows(owner)
    coefficients, dtype = owner.coefficients, getattr(owner, name)
    is_cans = isinstance(coefficients, str) and coefficients == "cans"
    if is_cans and dtype is not None and jnp.dtype(dtype) == jnp.bfloat16:
        raise InputError(
            f"`{name}` must not be bfloat16 with `coefficients='cans'`, which diverges "
            "in bfloat16. Use float32, or `coefficients='polar_express'`."
        )


def newton_schulz_of(owner, name="ns_dtype", **options) -> NewtonSchulz:
    """The iteration with the coefficients and steps of `owner`.

    `name` is the argument with its dtype; `options` is for iterations on the gram matrix.
    """
    table = rows_of(owner.coefficients, owner.steps)
    return NewtonSchulz(
        rows=jnp.asarray(table.rows, float),
        norm_factor=jnp.asarray(table.norm_factor, float),
        ns_dtype=getattr(owner, name),
        is_coarse=table.is_coarse,
        **options,
    )
