"""Arithmetic that stays finite where the textbook formula does not."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, DTypeLike, Float, Inexact, Int


def common_dtype(*dtypes: DTypeLike) -> np.dtype:
    """The dtype to which others promote, also where implicit promotion is forbidden.

    **Arguments:**

    - `dtypes`: at least one. With `jnp.float32` among them, it is one to compute in.
    """
    with jax.numpy_dtype_promotion("standard"):
        return functools.reduce(jnp.promote_types, [jnp.dtype(d) for d in dtypes])


def safe_increment(count: Int[Array, ""]) -> Int[Array, ""]:
    """`count + 1`, staying at the largest value of the dtype instead of overflowing.

    **Arguments:**

    - `count`: a 0-d integer array.

    **Returns:**

    An array of the same dtype.
    """
    largest = jnp.iinfo(count.dtype).max
    return jnp.where(count < largest, count + 1, count)


def abs_sq(x: Inexact[Array, "*shape"]) -> Float[Array, "*shape"]:
    r"""The squared modulus $|x|^2$, real also for complex `x`, without a square root.

    **Arguments:**

    - `x`: a floating or complex array.

    **Returns:**

    A real array of the same shape and precision.
    """
    if jnp.iscomplexobj(x):
        return x.real * x.real + x.imag * x.imag
    return x * x


def has_nan(x: Inexact[Array, "*shape"]) -> Bool[Array, ""]:
    """Whether there is a NaN in `x`, however large it is, without temporary memory.

    XLA on a CPU makes an array of bools for `any(isnan(x))`, and loses NaNs in the `max`
    of a large array; the sign of a NaN is NaN, and so is any sum with it.

    **Arguments:**

    - `x`: a floating or complex array.
    """
    total = lambda x: jnp.sum(jnp.sign(x.astype(common_dtype(x.dtype, jnp.float32))))
    nan = total(x.real) + total(x.imag) if jnp.iscomplexobj(x) else total(x)
    return jnp.isnan(nan)


def safe_sqrt(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    r"""$\sqrt x$ with derivative 0, instead of infinity, at $x = 0$.

    An optimizer divides by $\sqrt\nu$, and $\nu$ is zero wherever the gradient has been
    zero so far: differentiating through the step would give `inf * 0`.

    **Arguments:**

    - `x`: a non-negative array.
    """
    positive = x > 0
    root = jnp.sqrt(jnp.where(positive, x, 1))
    return jnp.where(positive, root, lax.stop_gradient(x))  # zero, or a NaN


def bias_correction(decay: Any, count: Int[Array, ""]) -> Float[Array, ""]:
    r"""$1 - \beta^t$: how far an average that started at zero has filled up.

    **Arguments:**

    - `decay`: $\beta$, a number or a 0-d array in $[0, 1)$.
    - `count`: $t$, the number of values averaged so far, a 0-d integer array.
    """
    with jax.numpy_dtype_promotion("standard"):  # a float to the power of an integer
        return 1 - decay**count
