"""One step of the fit of a Kronecker-factored preconditioner that whitens matrices.

The factors are matrices, or vectors that represent diagonal matrices.
"""

from typing import Any

import jax.numpy as jnp
from jax import lax

from ...._transforms.normalize import power_of_two
from ....numerics._numerics import abs_sq, safe_sqrt


# The decay of the estimate of a Lipschitz constant, and the longest step of a rotation.
_LIPSCHITZ_BETA = 0.9
_LONGEST_ROTATION = 1 / 8

# The number of steps of the power iteration that estimates a norm.
_POWER_STEPS = 2

# The largest square of a whitened norm to which factors are fitted.
_LARGEST = 1e30


def fitted(rate: Any, damping: Any, g: Any, factors: Any, lipschitz: Any) -> Any:
    """The factors and the Lipschitz constants after one step of the fit.

    They stay as they are if the gradient is too large for squares of its products.
    """
    factors = _balanced(factors)
    squares = [squared(q) for q in factors]
    whitened = whitened_by(g, squares)
    pairs = []
    for side, (q, old) in enumerate(zip(factors, lipschitz, strict=True)):
        # The expected effect of noise of size `damping` on the gradients.
        others = float(g.size // q.shape[0])
        noise = damping**2 * jnp.sum(abs_sq(squares[1 - side]))
        is_diagonal = q.ndim == 1
        if is_diagonal:
            first = jnp.sum(abs_sq(whitened), 1 - side) + noise * squares[side] ** 2
            total = jnp.sum(first)
            bound = jnp.max(first) + others
            ascent = first * q - others * q
        else:
            x = whitened if side == 0 else whitened.T
            first = x @ jnp.conj(x.T) + noise * (squares[side] @ squares[side])
            total = jnp.trace(first).real
            bound = _norm(first) + others
            ascent = first @ q - others * q
        new = jnp.maximum(_LIPSCHITZ_BETA * old + (1 - _LIPSCHITZ_BETA) * bound, bound)
        step = q - rate / new * ascent
        is_lost = total > _LARGEST
        pair = step if is_diagonal else _rotated(step), new
        pairs.append(
            [jnp.where(is_lost, *xs) for xs in zip((q, old), pair, strict=True)]
        )
    return tuple(tuple(x) for x in zip(*pairs, strict=True))


def at_scale(factors: Any, g: Any, damping: Any) -> Any:
    """Replaces factors that are zero by the identity at the scale of the gradient."""
    largest = jnp.max(jnp.abs(g))
    ratio = g / jnp.where(largest > 0, largest, 1)
    size = largest * jnp.where(largest > 0, jnp.mean(abs_sq(ratio) ** 2), 1) ** 0.25
    scale = jnp.maximum(size, damping)
    # The squares of both factors multiply to the inverse of the scale.
    scale = jnp.where(size > 0, jnp.where(scale > 0, scale, 1) ** -0.25, 0)
    identity = lambda q: (
        jnp.ones_like(q) if q.ndim == 1 else jnp.eye(len(q), dtype=q.dtype)
    )
    is_new = jnp.all(factors[0] == 0)
    return tuple(jnp.where(is_new, scale * identity(q), q) for q in factors)


def _balanced(factors: Any) -> Any:
    """Factors with the same product, scaled so that their largest elements are equal."""
    left, right = (jnp.max(jnp.abs(q)) for q in factors)
    ratio = jnp.sqrt(jnp.where(left > 0, right, 1) / jnp.where(left > 0, left, 1))
    return [factors[0] * ratio, factors[1] / jnp.where(ratio > 0, ratio, 1)]


def squared(q: Any) -> Any:
    return abs_sq(q) if q.ndim == 1 else jnp.conj(q.T) @ q


def whitened_by(x: Any, squares: Any) -> Any:
    r"""$P_L X P_R^\top$."""
    left, right = squares
    x = left[:, None] * x if left.ndim == 1 else left @ x
    return x * right[None] if right.ndim == 1 else x @ right.T


def _norm(x: Any) -> Any:
    """A close lower bound of the spectral norm of a normal matrix."""
    y = x[:, jnp.argmax(jnp.sum(abs_sq(x), 0))]
    for _ in range(_POWER_STEPS):
        y = x @ (y / _at_least_tiny(_length(y)))
    return _length(y)


def _length(y: Any) -> Any:
    """The norm of a vector, whose squares may overflow."""
    unit = power_of_two(jnp.max(jnp.abs(y)))
    return unit * safe_sqrt(jnp.sum(abs_sq(y / unit)))


def _at_least_tiny(x: Any) -> Any:
    return jnp.where(x > 0, x, 1)


def _rotated(q: Any) -> Any:
    """Rotates `q` slightly towards the Hermitian matrix with the same square.

    The rotation is a constant in derivatives. It has none where `q` is Hermitian, which
    factors are at first.
    """
    r = lax.stop_gradient(jnp.conj(q.T) - q)
    r = r / _at_least_tiny(_norm(r))
    once = r @ q
    twice = r @ once
    rise, fall = jnp.trace(once).real, -jnp.trace(twice).real
    best = jnp.minimum(rise / jnp.where(fall > 0, fall, 1), _LONGEST_ROTATION)
    a = lax.stop_gradient(jnp.where(fall > 0, best, _LONGEST_ROTATION))
    return q + a * (once + 0.5 * a * twice)
