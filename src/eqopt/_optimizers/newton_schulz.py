"""Making many matrices orthogonal at once, with nothing but matrix products."""

import functools
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Inexact

from ..numerics import abs_sq, safe_sqrt


@functools.partial(jax.jit, static_argnames=("preconditioning", "adaptive"))
def orthogonalize(
    stacks: list[Inexact[Array, "_ _ _"]],
    coefficients: Float[Array, "steps 3"],
    eps: Float[Array, ""],
    preconditioning: str,
    adaptive: bool,
) -> list[Inexact[Array, "_ _ _"]]:
    """`newton_schulz` of several stacks of matrices, each with its short side first."""

    alone = lambda stacks: [
        newton_schulz(x, coefficients, eps, preconditioning, adaptive) for x in stacks
    ]
    # An accelerator takes equal shapes all at once. A CPU takes them leaf by leaf: for 48
    # matrices of 256 x 256, stacking was slower by a tenth, took two times as long to
    # compile (each slice from another place is another kernel) and 3 times the memory.
    return lax.platform_dependent(
        stacks, cpu=alone, default=functools.partial(in_batches, alone)
    )


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


@functools.partial(jax.jit, static_argnames=("preconditioning", "adaptive"))
def newton_schulz(
    stack: Inexact[Array, "stack rows columns"],
    coefficients: Float[Array, "steps 3"],
    eps: Float[Array, ""],
    preconditioning: str,
    adaptive: bool,
) -> Inexact[Array, "stack rows columns"]:
    if stack.size == 0:
        return stack
    dtype, real = stack.dtype, jnp.finfo(stack.dtype).dtype
    fn = functools.partial(
        _newton_schulz,
        coefficients=coefficients.astype(real).astype(dtype),
        eps=eps.astype(real),
        preconditioning=preconditioning,
        adaptive=adaptive,
    )
    return fn(stack[0])[None] if len(stack) == 1 else jax.vmap(fn)(stack)


def _newton_schulz(x, coefficients, eps, preconditioning, adaptive):
    r"""$X \leftarrow (a I + b A + c A^2)\, X$ with $A = X X^*$, for each row $(a, b, c)$.

    A zero matrix stays zero.
    """

    def step(x, row):
        a, b, c = row
        gram = _gram(x)
        return a * x + (b * gram + c * (gram @ gram)) @ x, None

    norm = safe_sqrt(jnp.sum(abs_sq(x)))
    start = x / jnp.where(norm > 0, norm + eps, 1).astype(x.dtype)
    if preconditioning != "frobenius":
        squares = SQUARED_SCALES[preconditioning](_gram(start))
        start *= lax.rsqrt(jnp.where(squares > 0, squares, 1)).astype(x.dtype)
    # A loop is compiled once, not once per step.
    result, _ = lax.scan(step, start, coefficients)
    if adaptive:
        result *= jnp.sum((jnp.conj(x) * result).real).astype(x.dtype)
    return result


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
