"""Making many matrices orthogonal at once, with nothing but matrix products."""

import functools
from collections.abc import Callable, Iterator
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Inexact, Int

from ..numerics import abs_sq, safe_sqrt


Turn: TypeAlias = Int[Array, ""]  # a number that is never negative; see `await_turn`
Iterate: TypeAlias = Callable[[Array, Turn], tuple[Array, Turn]]

# How many matrices a CPU has under way. To take one after the other would need even less
# memory; but small ones do not keep many cores busy, and to wait is more to compile.
_AT_A_TIME = 4


def orthogonalize(
    stacks: list[Callable[[Turn], Array]], iterate: Iterate, turn: Turn
) -> list[Array]:
    """`iterate`, which is `newton_schulz`, of several stacks of matrices.

    **Arguments:**

    - `stacks`: functions that make them, each with its short side first, in its turn.
    - `turn`: the first one: any number that is not known before the program runs.
    """

    def in_turn() -> list[Array]:
        now, results = turn, []
        for i, stack in enumerate(stacks, 1):
            result, after = iterate(stack(now), now)
            results.append(result)
            if i % _AT_A_TIME == 0:
                now = after
        return results

    def together() -> list[Array]:
        alone = lambda stacks: [iterate(stack, turn)[0] for stack in stacks]
        return in_batches(alone, [stack(turn) for stack in stacks])

    # An accelerator takes equal shapes all at once. A CPU takes leaves in turn: for 48
    # matrices of 256 x 256, stacking was slower by a tenth, took two times as long to
    # compile (each slice from another place is another kernel) and 3 times the memory.
    return lax.platform_dependent(cpu=in_turn, default=together)


def await_turn(turn: Turn, x: Inexact[Array, "*shape"]) -> Inexact[Array, "*shape"]:
    """`x`, read once there is `turn`.

    XLA on a CPU starts whatever waits for nothing, and so would keep what all matrices
    need at the same time. It heeds no `lax.optimization_barrier` there, but does not know
    that `turn`, which each step of an iteration halves, cannot be negative. (`after` of
    equations does this with an array of the shape of `x`; a number has no shards.)
    """
    return jnp.where(turn < 0, 0, x)


def in_batches(fn: Callable[[list], list], stacks: list) -> list:
    """`fn` of `stacks`, after joining those of matrices of one shape and dtype."""
    results: list = [None] * len(stacks)
    batches = [*_batches(stacks)]
    joined = [jnp.concatenate([stacks[i] for i in batch]) for batch in batches]
    for batch, result in zip(batches, fn(joined), strict=True):
        parts = lax.split(result, [len(stacks[i]) for i in batch])
        for i, part in zip(batch, parts, strict=True):
            results[i] = part
    return results


# Elements to a batch, 64 MB in float32: whatever is larger keeps a device busy by itself,
# and to join it would take memory for nothing.
_BATCH = 2**24


def _batches(stacks: list) -> Iterator[list[int]]:
    groups = {}
    for i, x in enumerate(stacks):
        groups.setdefault((x.shape[1:], x.dtype), []).append(i)
    for group in groups.values():
        batch, elements = [], 0
        for i in group:
            if batch and elements + stacks[i].size > _BATCH:
                yield batch
                batch, elements = [], 0
            batch.append(i)
            elements += stacks[i].size
        yield batch


@functools.partial(jax.jit, static_argnames=("steps", "preconditioning", "adaptive"))
def newton_schulz(
    stack: Inexact[Array, "stack rows columns"],
    turn: Turn,
    *,
    coefficients: Float[Array, "*steps 3"],
    steps: int,
    eps: Float[Array, ""],
    preconditioning: str,
    adaptive: bool,
) -> tuple[Inexact[Array, "stack rows columns"], Turn]:
    """The matrices, made orthogonal, and the turn of the next ones.

    `coefficients` are those of all `steps`, or have a row for each.
    """
    if stack.size == 0:
        return stack, turn
    dtype, real = stack.dtype, jnp.finfo(stack.dtype).dtype
    fn = functools.partial(
        _newton_schulz,
        turn=turn,
        coefficients=coefficients.astype(real).astype(dtype),
        steps=steps,
        eps=eps.astype(real),
        preconditioning=preconditioning,
        adaptive=adaptive,
    )
    if len(stack) == 1:
        result, turn = fn(stack[0])
        return result[None], turn
    return jax.vmap(fn, out_axes=(0, None))(stack)


def _newton_schulz(x, turn, coefficients, steps, eps, preconditioning, adaptive):
    r"""$X \leftarrow (a I + b A + c A^2)\, X$ with $A = X X^*$, in each step.

    A zero matrix stays zero.
    """

    # One row for all steps need not be looked up, which is less to compile.
    is_one = coefficients.ndim == 1
    fixed, rows = (tuple(coefficients), None) if is_one else (None, coefficients)

    def step(carry, row):
        x, turn = carry
        a, b, c = fixed or row
        gram = _gram(x)
        x = a * x + (b * gram + c * (gram @ gram)) @ x
        return (x, turn >> 1), None

    squares = jnp.sum(abs_sq(x))
    norm = jnp.sqrt(jnp.where(squares > 0, squares, 1))
    start = x / (norm + eps).astype(x.dtype)
    if preconditioning != "frobenius":
        squares = SQUARED_SCALES[preconditioning](_gram(start))
        start *= lax.rsqrt(jnp.where(squares > 0, squares, 1)).astype(x.dtype)
    # A loop is compiled once, not once per step.
    (result, turn), _ = lax.scan(step, (start, turn), rows, steps if is_one else None)
    if adaptive:
        result *= jnp.sum((jnp.conj(x) * result).real).astype(x.dtype)
    return result, turn


def _gram(x):
    # As `x @ x.T.conj()`, but XLA on a CPU would make a copy of the transpose.
    return lax.dot_general(x, jnp.conj(x), (((1,), (1,)), ((), ())))


# What $X$ is divided by, squared, as functions of $X X^*$: a number, or one for each row.
# (The Frobenius norm comes first in any case: so none of them depends on the scale of the
# gradients, and the squares of small ones do not underflow.)
SQUARED_SCALES: dict[str, Callable] = {
    "spectral": lambda gram: jnp.linalg.eigvalsh(gram)[-1],
    "aol": lambda gram: jnp.sum(jnp.abs(gram), 1, keepdims=True),
    "schatten": lambda gram: safe_sqrt(jnp.sum(abs_sq(gram))),
}
PRECONDITIONINGS = ("frobenius", *SQUARED_SCALES)
