"""Random arrays of all shapes, drawn by a few programs.

A program that draws numbers takes a tenth of a second to compile, for each shape: a fifth
of all compilation in tests of optimizers. But a random number depends only on its key and
on its position in the flat array. So an array of any shape has the same bits as the
beginning of a longer one.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np


def share() -> None:
    """From now on, `normal` and `uniform` draw 4096, 8192, 16384, ... numbers."""
    # This is inside JAX. It only saves time, so tests do without it in a release that
    # has no such function.
    try:
        from jax._src.core import trace_state_clean
    except ImportError:
        return
    for name in ("normal", "uniform"):
        draw = getattr(jax.random, name)
        setattr(jax.random, name, _shared(draw, trace_state_clean))


def _shared(draw, is_outside):
    @functools.wraps(draw)
    def drawn(key, shape=(), *args, **kwargs):
        sizes = np.atleast_1d(shape)
        numbers = *args[1:], *(x for name, x in kwargs.items() if name != "dtype")
        is_plain = isinstance(key, jax.Array) and key.size == _size_of_one(key)
        is_plain &= all(isinstance(x, int | float) for x in numbers)
        if not (is_plain and is_outside()):
            return draw(key, shape, *args, **kwargs)
        size = math.prod(sizes.tolist())
        longer = draw(key, (max(4096, 1 << (size - 1).bit_length()),), *args, **kwargs)
        return jnp.asarray(np.asarray(longer)[:size].reshape(shape))

    return drawn


def _size_of_one(key):
    return 1 if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else 2
