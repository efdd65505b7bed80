"""Orthogonalizing many matrices at once, using only matrix products."""

import functools
import operator
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Inexact, Int

from ...._dimension_numbers import Axes, from_matrices, to_matrices
from ...._equations import compute_dtype
from ....numerics import abs_sq, safe_sqrt
from .eigenbasis import gram


Stack: TypeAlias = Inexact[Array, "*_ _ _"]  # of no axes, too: one matrix
Weights: TypeAlias = tuple[Float[Array, ""], ...]
Turn: TypeAlias = Int[Array, ""]  # a number that is never negative; see `_await_turn`


_COMPILED_ONCE = functools.partial(
    jax.jit, static_argnames=("axes", "steps", "preconditioning", "adaptive", "joins")
)


@_COMPILED_ONCE
def orthogonalize(
    axes: tuple[Axes, ...],
    gs: list[Array],
    mus: list[Array],
    weights: Weights,
    turn: Turn,
    **kwargs: Any,
) -> list[Array]:
    r"""$\operatorname{NS}(\hat\mu)$ of each leaf.

    **Arguments:**

    - `axes`: which axes of the leaves are rows and columns; no leaf is empty.
    - `gs`, `mus`: the gradients, and the momentum after the step.
    - `weights`: the weights of $\mu$, and of $g$ with Nesterov momentum, in $\hat\mu$.
    - `turn`: any number that is not known before the program runs, and not negative.
    - The others are those of `newton_schulz`.
    """

    def in_turn():
        now, results = turn, []
        for i in range(0, len(axes), _AT_A_TIME):
            few = slice(i, i + _AT_A_TIME)
            some, now = _together(axes[few], gs[few], mus[few], weights, now, **kwargs)
            results += some
        return results

    def together():
        return _together(axes, gs, mus, weights, turn, joins=True, **kwargs)[0]

    # An accelerator takes equal shapes all at once. A CPU takes a few leaves in turn: for
    # 48 matrices of 256 x 256, stacking was slower by a tenth, took two times as long to
    # compile (each slice from another place is another kernel) and 3 times the memory.
    return lax.platform_dependent(cpu=in_turn, default=together)


# How many leaves a CPU has under way, in one loop. One would need even less memory, but
# as many loops as there are leaves take longer to compile.
_AT_A_TIME = 2


@_COMPILED_ONCE
def _together(axes, gs, mus, weights, turn, joins=False, **kwargs):
    """`orthogonalize` in one loop, and the turn for the matrices after it."""
    stacks = [_stack(*leaf, weights, turn) for leaf in zip(axes, gs, mus, strict=True)]
    batches, apart = _joined(stacks) if joins else (stacks, list)
    results, turn = newton_schulz(batches, turn, **kwargs)
    return [
        from_matrices(x, a, g) for x, a, g in zip(apart(results), axes, gs, strict=True)
    ], turn


@functools.partial(jax.jit, static_argnames="axes")
def _stack(axes, g, mu, weights, turn):
    r"""The matrices of $\hat\mu_t$."""
    real = compute_dtype(g)
    columns = (_await_turn(turn, mu), g)[: len(weights)]
    # The weights are real, also for complex matrices.
    with jax.numpy_dtype_promotion("standard"):
        terms = [w.astype(real) * x for w, x in zip(weights, columns, strict=True)]
    return to_matrices(functools.reduce(operator.add, terms), axes)


def newton_schulz(
    stacks: list[Stack],
    turn: Turn,
    *,
    coefficients: Float[Array, "*steps 3"],
    steps: int,
    eps: Float[Array, ""],
    preconditioning: str,
    adaptive: bool,
) -> tuple[list[Stack], Turn]:
    """Orthogonalizes all matrices in one loop; also returns the turn for the next ones.

    `coefficients` apply to all `steps`, or have one row for each. A zero matrix stays
    zero. None may be empty.
    """
    # One row for all steps need not be looked up, which is less to compile.
    is_one = coefficients.ndim == 1
    fixed, rows = (tuple(coefficients), None) if is_one else (None, coefficients)

    def step(carry, row):
        xs, turn = carry
        return ([polynomial(x, *(fixed or row)) for x in xs], turn >> 1), None

    starts = [_start(x, eps, preconditioning) for x in stacks]
    # A loop is compiled once, not once per step.
    (results, turn), _ = lax.scan(step, (starts, turn), rows, steps if is_one else None)
    if adaptive:
        results = [*map(_scaled_by_product, results, stacks)]
    return results, turn


def _await_turn(turn: Turn, x: Inexact[Array, "*shape"]) -> Inexact[Array, "*shape"]:
    """`x`, read once there is `turn`.

    XLA on a CPU starts whatever does not wait for anything, and so would keep the
    temporary arrays of all matrices at the same time. It ignores
    `lax.optimization_barrier` there. But it does not know that `turn`, which each step
    of an iteration halves, cannot be negative. (`after` of equations does this with an
    array of the shape of `x`; a number has no shards.)
    """
    return jnp.where(turn < 0, 0, x)


def _joined(
    stacks: list[Stack],
) -> tuple[list[Stack], Callable[[list[Stack]], list[Stack]]]:
    """Matrices of one shape and dtype in one stack, and a function to split it."""
    batches = [*_batches(stacks)]
    lists = [x.reshape(-1, *x.shape[-2:]) for x in stacks]

    def apart(results):
        parts = [*stacks]
        for batch, result in zip(batches, results, strict=True):
            sizes = [len(lists[i]) for i in batch]
            for i, part in zip(batch, lax.split(result, sizes), strict=True):
                parts[i] = part.reshape(stacks[i].shape)
        return parts

    return [jnp.concatenate([lists[i] for i in batch]) for batch in batches], apart


# Elements per batch, 64 MB in float32. A larger matrix keeps a device busy on its own,
# and joining it would only take memory.
_BATCH = 2**24


def _batches(stacks: list[Stack]) -> Iterator[list[int]]:
    groups = {}
    for i, x in enumerate(stacks):
        groups.setdefault((x.shape[-2:], x.dtype), []).append(i)
    for group in groups.values():
        batch, elements = [], 0
        for i in group:
            if batch and elements + stacks[i].size > _BATCH:
                yield batch
                batch, elements = [], 0
            batch.append(i)
            elements += stacks[i].size
        yield batch


# The functions of one matrix; `vectorize` is for stacks of them.


@functools.partial(jnp.vectorize, signature="(m,n),()->(m,n)", excluded={2})
def _start(x, eps, preconditioning):
    """$X_0$."""
    squares = jnp.sum(abs_sq(x))
    norm = jnp.sqrt(jnp.where(squares > 0, squares, 1))
    start = x / (norm + eps.astype(norm.dtype)).astype(x.dtype)
    if preconditioning == "frobenius":
        return start
    squares = SQUARED_SCALES[preconditioning](gram(start, 0))
    return start * lax.rsqrt(jnp.where(squares > 0, squares, 1)).astype(x.dtype)


@functools.partial(jnp.vectorize, signature="(m,n),(),(),()->(m,n)")
def polynomial(x, a, b, c):
    """$(a I + b A + c A^2) X$ with $A = X X^*$."""
    real = jnp.finfo(x.dtype).dtype
    a, b, c = (number.astype(real).astype(x.dtype) for number in (a, b, c))
    square = gram(x, 0)
    return a * x + (b * square + c * (square @ square)) @ x


@functools.partial(jnp.vectorize, signature="(m,n),(m,n)->(m,n)")
def _scaled_by_product(y, x):
    r"""$\langle X, Y \rangle\, Y$."""
    return y * jnp.sum((jnp.conj(x) * y).real).astype(y.dtype)


# What $X$ is divided by, squared, as functions of $X X^*$: a number, or one for each row.
# (The Frobenius norm comes first in any case: so none of them depends on the scale of the
# gradients, and the squares of small ones do not underflow.)
SQUARED_SCALES: dict[str, Callable] = {
    "spectral": lambda gram: jnp.linalg.eigvalsh(gram)[-1],
    "aol": lambda gram: jnp.sum(jnp.abs(gram), 1, keepdims=True),
    "schatten": lambda gram: safe_sqrt(jnp.sum(abs_sq(gram))),
}
PRECONDITIONINGS = ("frobenius", *SQUARED_SCALES)
