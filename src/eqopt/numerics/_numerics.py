"""Arithmetic that stays finite even if the textbook formula does not."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, DTypeLike, Float, Inexact, Integer


def common_dtype(*dtypes: DTypeLike) -> np.dtype:
    """The common promoted dtype, even if implicit promotion is disabled.

    **Arguments:**

    - `dtypes`: at least one dtype.
    """
    with jax.numpy_dtype_promotion("standard"):
        return functools.reduce(jnp.promote_types, [jnp.dtype(d) for d in dtypes])


def wide_dtype(*dtypes: DTypeLike) -> np.dtype:
    """The dtype to compute in: the common promoted dtype, at least float32.

    **Arguments:**

    - `dtypes`: any number of dtypes. If one is complex, so is the result.
    """
    return common_dtype(jnp.float32, *dtypes)


def at_least_float32(x: Array) -> Array:
    """`x` in the precision to compute in: [`eqopt.numerics.wide_dtype`][].

    **Arguments:**

    - `x`: an array of numbers. Integers and bools become float32.
    """
    # Checking shapes and dtypes would take ten times as long, and this is called for
    # each leaf.
    return x.astype(common_dtype(jnp.float32, x.dtype))


def as_float(value: Any) -> Any:
    """A hyperparameter as a floating-point number, whatever its real type.

    **Arguments:**

    - `value`: a Python number, a NumPy scalar or a 0-d array, of any real dtype.

    **Returns:**

    A Python float if the value is a Python or NumPy number; otherwise a 0-d array in at
    least float32.
    """
    if not isinstance(value, jax.Array):
        return float(value)
    is_float = jnp.issubdtype(value.dtype, jnp.floating)
    wide = wide_dtype(value.dtype) if is_float else float
    return value.astype(wide)


def safe_increment(count: Integer[Array, ""]) -> Integer[Array, ""]:
    """`count + 1`, or the largest value of the dtype instead of an overflow.

    **Arguments:**

    - `count`: a 0-d integer array, signed or not.

    **Returns:**

    An array of the same dtype.
    """
    # In a new process, this takes a millisecond less to trace than `jnp.where`.
    one = np.ones((), count.dtype)
    return lax.add(lax.min(count, jnp.iinfo(count.dtype).max - one), one)


def abs_sq(x: Inexact[Array, "*shape"]) -> Float[Array, "*shape"]:
    r"""The squared modulus $|x|^2$, real also for complex `x`, without a square root.

    **Arguments:**

    - `x`: a floating-point or complex array.

    **Returns:**

    A real array of the same shape and precision.
    """
    if jnp.iscomplexobj(x):
        return x.real * x.real + x.imag * x.imag
    return x * x


def has_nan(x: Inexact[Array, "*shape"]) -> Bool[Array, ""]:
    """Whether `x` contains a NaN, computed without temporary memory.

    On a CPU, XLA creates an array of bools for `any(isnan(x))`, and the `max` of a
    large array ignores NaNs. Here, the signs are summed: the sign of a NaN is NaN, and
    so is any sum with it.

    **Arguments:**

    - `x`: a floating-point or complex array.
    """
    return _has_nan(x)


def _has_nan(x: Array, axis: Any = None, keepdims: bool = False) -> Array:
    total = lambda x: jnp.sum(jnp.sign(at_least_float32(x)), axis, keepdims=keepdims)
    nan = total(x.real) + total(x.imag) if jnp.iscomplexobj(x) else total(x)
    return jnp.isnan(nan)


def nan_where(
    condition: Bool[Array, "*shape"], x: Float[Array, "*shape"]
) -> Float[Array, "*shape"]:
    """NaN where `condition` is true, otherwise `x`.

    There, the derivative is 0. `jax_debug_nans` would take the constant NaN of a
    `jnp.where` for an error, even if `condition` is false everywhere.

    **Arguments:**

    - `condition`: an array of bools.
    - `x`: a floating-point array of the same shape.
    """
    nan = jnp.sqrt(jnp.where(condition, -1, 1).astype(x.dtype))
    return jnp.where(condition, nan, x)


def max_or_nan(
    x: Float[Array, "..."],
    axis: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
    initial: float | int | None = None,
    most: float | int = np.inf,
) -> Float[Array, "..."]:
    """The largest number, or NaN if one of them is, as in `jnp.max`.

    On a CPU, XLA's minima and maxima of large arrays ignore NaNs, so `jnp.max` returns a
    number there.

    **Arguments:**

    - `x`: a floating-point array.
    - `axis`, `keepdims`, `initial`: the arguments of `jnp.max`.
    - `most`: the largest result. Larger numbers count as this. Defaults to infinity.
    """
    axes = tuple(range(x.ndim)) if axis is None else axis
    axes = tuple(a % x.ndim for a in np.atleast_1d(axes).tolist())
    return _compiled_max(x, axes, keepdims, initial, most)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2, 3, 4))
def _max_or_nan(x, axes, keepdims, initial, most):
    elsewhere = lambda x: _plain_max(x, axes, keepdims, initial, most)

    def on_cpu(x):
        # Of columns, two reductions are quicker. Otherwise one is, and needs no memory:
        # XLA creates an array that is read twice.
        if x.ndim - 1 not in axes:
            return nan_where(_has_nan(x, axes, keepdims), elsewhere(x))
        least = -jnp.inf if initial is None else initial
        start = jnp.asarray(least, x.dtype), jnp.asarray(False)
        both = lambda a, b: (lax.max(a[0], b[0]), a[1] | b[1])
        columns = jnp.minimum(x, most), jnp.isnan(x)
        largest, is_nan = lax.reduce(columns, start, both, axes)
        largest = nan_where(is_nan, largest)
        return jnp.expand_dims(largest, axes) if keepdims else largest

    return lax.platform_dependent(x, cpu=on_cpu, default=elsewhere)


def _plain_max(x, axes, keepdims, initial, most):
    return jnp.max(jnp.minimum(x, most), axes, keepdims=keepdims, initial=initial)


# Outside `jit`, each call would compile its branches again.
_compiled_max = jax.jit(_max_or_nan, static_argnums=(1, 2, 3, 4))


# A rule, because JAX has none for a reduction of two arrays.
@_max_or_nan.defjvp
def _slope_of_max_or_nan(axes, keepdims, initial, most, primals, tangents):
    options = axes, keepdims, initial, most
    _, slope = jax.jvp(lambda x: _plain_max(x, *options), primals, tangents)
    return _max_or_nan(*primals, *options), slope


def safe_sqrt(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    r"""$\sqrt x$ with derivative 0, instead of infinity, at $x = 0$.

    An optimizer divides by $\sqrt\nu$, and $\nu$ is zero if all gradients so far are
    zero: differentiating through the step would give `inf * 0`.

    **Arguments:**

    - `x`: a non-negative array.
    """
    return _safe_sqrt(x)


@jax.custom_jvp
def _safe_sqrt(x: Array) -> Array:
    return lax.sqrt(x)


# A rule, because a selection of the root, or of the operand to avoid a division by zero
# in the derivative, takes a tenth of the time of a step of Adam on a CPU.
@_safe_sqrt.defjvp
def _slope_of_safe_sqrt(primals: tuple, tangents: tuple) -> tuple:
    root = _safe_sqrt(*primals)
    # Not `jnp.where`, which JAX traces as a separate function for each shape.
    divisor = lax.select(root > 0, root, lax.full_like(root, jnp.inf))
    return root, 0.5 * tangents[0] / divisor


def safe_norm(
    x: Inexact[Array, "..."],
    min_norm: float | int | Float[Array, ""],
    ord: int | float | str | None = None,
    axis: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
) -> Float[Array, "..."]:
    r"""$\max(\lVert x \rVert, m)$, with derivative 0 where the norm is at most $m$.

    The norm has no derivative at 0: the textbook formula gives NaN, even if $m > 0$.

    **Arguments:**

    - `x`: a floating-point or complex array.
    - `min_norm`: $m$, a number or a 0-d array, at least 0.
    - `ord`, `axis`, `keepdims`: the arguments of `jnp.linalg.norm`. By default, the
        norm is the 2-norm of all numbers of a vector or matrix.

    **Returns:**

    A real array in the precision of `x`, at least float32: one norm, or a norm for each
    index of the remaining axes. NaN stays NaN.
    """
    x = at_least_float32(x)
    floor = jnp.asarray(min_norm, x.real.dtype)
    is_small = jnp.linalg.norm(x, ord, axis, keepdims=True) <= floor
    # The derivative of the value that is not selected must also be finite.
    norm = jnp.linalg.norm(
        jnp.where(is_small, jnp.ones_like(x), x), ord, axis, keepdims
    )
    is_small = is_small if keepdims else jnp.squeeze(is_small, axis)
    norm = jnp.where(is_small, floor, norm)
    if ord is None:
        return norm
    return nan_where(_has_nan(x, axis, keepdims), norm)


def safe_root_mean_squares(
    x: Inexact[Array, "*shape"], min_rms: float | int | Float[Array, ""]
) -> Float[Array, ""]:
    r"""$\max(\operatorname{rms}(x), m)$, with derivative 0 where it is $m$.

    Here $\operatorname{rms}(x)$ is the root of the mean of $|x|^2$, which has no
    derivative at 0.

    **Arguments:**

    - `x`: a floating-point or complex array.
    - `min_rms`: $m$, a number or a 0-d array, at least 0.

    **Returns:**

    A 0-d real array of the precision of `x`, at least float32. It is $m$ if `x` is empty,
    and NaN stays NaN.
    """
    x = at_least_float32(x)
    mean_square = jnp.sum(abs_sq(x)) / max(x.size, 1)
    rms, floor = safe_sqrt(mean_square), jnp.asarray(min_rms, mean_square.dtype)
    return jnp.where(rms <= floor, floor, rms)


def bias_correction(decay: Any, count: Integer[Array, ""]) -> Float[Array, ""]:
    r"""$1 - \beta^t$: the correction for an average that started at zero.

    **Arguments:**

    - `decay`: $\beta$, a real number or a 0-d array in $[0, 1)$.
    - `count`: $t$, the number of values averaged so far, a 0-d integer array.
    """
    # Not `decay**count`: outside `jit`, the exponent is known, and JAX compiles a
    # separate power for each exponent, so for each step. The exponent is converted to a
    # float, because JAX's derivative for an integer exponent multiplies a float by an
    # integer.
    base = jnp.asarray(as_float(decay))
    power = lax.pow(base, lax.convert_element_type(count, base.dtype))
    return lax.sub(np.ones((), base.dtype), power)  # traced in half the time of `1 - `
