"""The dtypes that schedules compute in.

Counts and numbers of steps stay integers until they are divided, because float32 cannot
distinguish neighbours above 2**24. Values are float32, and float64 in 64-bit mode.
A number of steps may exceed int32, while counts may not: see `compiled`.

This runs whenever a schedule is called, perhaps outside `jit`.
"""

import functools
import itertools
from typing import Annotated, Any, TypeAlias

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .._arguments.checks import check_scalar
from .._errors import InputError, naming
from .._types import AtLeast, Interval, RealScalarLike


# Only integers: the bounds below reject floats, with a better message than beartype's.
IntScalarLike: TypeAlias = RealScalarLike
Steps: TypeAlias = Annotated[IntScalarLike, AtLeast(1)]
StepsOrZero: TypeAlias = Annotated[IntScalarLike, AtLeast(0)]

# Finite numbers.
Finite: TypeAlias = Annotated[
    RealScalarLike, Interval(includes_low=False, includes_high=False)
]
FiniteZeroOrMore: TypeAlias = Annotated[
    RealScalarLike, Interval(0, includes_high=False)
]
FinitePositive: TypeAlias = Annotated[
    RealScalarLike, Interval(0, includes_low=False, includes_high=False)
]

_LARGEST_INT32 = 2**31 - 1
_BEYOND_INT32 = frozenset({np.dtype(np.int64), np.dtype(np.uint32)})


def of_counts(call):
    """Makes a function of a schedule and one count accept arrays of counts too.

    Errors in it get the name of the class.
    """

    @functools.wraps(call)
    def of_each(schedule, count):
        with naming(schedule):
            if np.ndim(count) == 0:
                return call(schedule, count)
            counts = as_count(count)
            values = jax.vmap(functools.partial(call, schedule))(counts.reshape(-1))
            return values.reshape(counts.shape)

    return of_each


def compiled(function, static_argnames=()):
    """`jax.jit`, with all integers as int64 if one of the arguments requires it.

    Without x64, no count reaches such a number of steps, but the ratio of the two is
    needed.
    """
    jitted = jax.jit(function, static_argnames=static_argnames)

    @functools.wraps(function)
    def call(*args, **options):
        if not any(map(_is_wide, jtu.tree_leaves(args))):
            return jitted(*args, **options)
        with jax.enable_x64(True):
            return jitted(*jtu.tree_map(_widened, args), **options)

    return call


def as_count(count):
    """The count, or an array of counts, as an array of the default integer dtype."""
    if not _holds_integers(count):
        raise InputError(
            f"the count must be an integer, but is {count!r}. Convert it with "
            "`int(count)` or `count.astype(jnp.int32)`."
        )
    dtype, largest = _int_dtype(), largest_count()
    if isinstance(count, int):
        return jnp.asarray(max(0, min(count, largest)), dtype)
    xp = jnp if isinstance(count, jax.Array) else np
    if jnp.iinfo(count.dtype).max > largest:
        count = xp.minimum(count, xp.asarray(largest, count.dtype))
    return jnp.asarray(xp.maximum(count, 0), dtype)


def as_integer(value: Any) -> Any:
    """A number of steps, in the dtype of the count, or in int64 if it needs that."""
    _check_is_one(value)
    if isinstance(value, jax.Array):
        return _widened(value) if _is_wide(value) else value.astype(_int_dtype())
    if value > _LARGEST_INT32:
        return np.asarray(value, np.int64)
    return _as_array(value, _int_dtype())


def reachable(boundaries):
    """The ascending counts, up to the first that exceeds the largest count."""
    largest = largest_count()
    within = itertools.takewhile(
        lambda x: isinstance(x, jax.Array) or int(x) <= largest, boundaries
    )
    return [as_count(x) if _is_wide(x) else as_integer(x) for x in within]


def later(start, steps):
    """The count `steps` later; it saturates at the largest count."""
    if not isinstance(start, jax.Array) and not isinstance(steps, jax.Array):
        return int(start) + int(steps)
    start, steps = as_count(start), as_count(steps)
    return jnp.minimum(start, largest_count() - steps) + steps


def as_real(value: Any) -> Any:
    """A number in `real_dtype`, not weakly typed."""
    _check_is_one(value)
    return _as_array(value, real_dtype())


def real_dtype():
    """Returns the dtype of values: float64 with `jax_enable_x64`, otherwise float32."""
    return jax.dtypes.canonicalize_dtype(float)


def is_integer(value):
    """Whether `value` is an integer or a 0-d integer array, traced or not."""
    return np.ndim(value) == 0 and _holds_integers(value)


def _holds_integers(value):
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        return jnp.issubdtype(value.dtype, jnp.integer)
    return isinstance(value, int) and not isinstance(value, bool)


def largest_count():
    return int(jnp.iinfo(_int_dtype()).max)


def _int_dtype():
    return jax.dtypes.canonicalize_dtype(int)


def _is_wide(x):
    # Whether it may not fit into int32, if that is the dtype of counts.
    is_beyond_int32 = getattr(x, "dtype", None) in _BEYOND_INT32
    return is_beyond_int32 and _int_dtype() == np.int32


def _widened(x):
    with jax.enable_x64(True):
        return jnp.asarray(x, np.int64) if _holds_integers(x) else x


def _check_is_one(value):
    if np.ndim(value) != 0:  # of a population
        check_scalar("its numbers must be 0-d to call it, but one is", value)


def _as_array(value, dtype):
    if isinstance(value, jax.Array):
        return value.astype(dtype)
    # NumPy arrays are much cheaper to create than JAX arrays, and `jit` accepts both.
    is_debugging = jax.config.jax_disable_jit  # type: ignore  # added at run time
    module = jnp if is_debugging else np
    return module.asarray(value, dtype)
