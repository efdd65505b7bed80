"""KL-Shampoo: each factor of Shampoo is whitened by the other one."""

import functools

import jax.numpy as jnp

from .eigenbasis import (
    accumulated,
    eigenvalues,
    found_or_followed,
    from_basis,
    renewed,
    started,
    to_basis,
)


def kl_factors(factors, basis, g, b2, eps):
    """The next factors, and whether the gradient counts: see `accumulated`."""
    no_start = jnp.asarray(False)  # the factors start as identities
    return accumulated(started(factors, g), basis, g, b2, no_start, True, eps)


def kl_direction(x, factors, basis, is_due, is_start, correction, eps, exponent):
    r"""$L^{-e} X R^{-e}$, in a basis that is updated if due, and that basis."""
    follow = functools.partial(found_or_followed, is_start)
    basis = renewed(is_due, follow, factors, basis)
    u = to_basis(x, basis)
    for side, (factor, v) in enumerate(zip(factors, basis, strict=True)):
        if factor is not None:
            values = jnp.maximum(eigenvalues(factor, v), eps) ** -exponent
            u = u * jnp.expand_dims(values, 1 - side)
    return from_basis(u, basis), basis
