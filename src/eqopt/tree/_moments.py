"""Exponential moving averages of powers of updates, as optimizers keep them."""

import math
from typing import Any

import jax.numpy as jnp

from .._arguments.checks import check_interval
from .._types import IntegerLike, PyTree, RealScalarLike
from ..numerics import _numerics
from ._together import check_real, elementwise, number


def update_moment(
    updates: PyTree, moments: PyTree, decay: RealScalarLike, order: float | int
) -> PyTree:
    r"""The moving average $\beta\,m + (1 - \beta)\,g^k$ of a power of the updates.

    **Arguments:**

    - `updates`: $g$, a tree of updates or gradients.
    - `moments`: $m$, a tree like `updates`, at first [`eqopt.tree.zeros_like`][] of it.
        Where `updates` has `None`, the moment stays unchanged.
    - `decay`: $\beta$, a number or a 0-d array in $[0, 1]$.
    - `order`: $k$, a positive number: 1 for the first moment, 2 for the second. For the
        second moment of complex updates, use
        [`eqopt.tree.update_moment_per_elem_norm`][].

    **Returns:**

    The updated `moments`, in their own dtypes. They are computed in at least float32.

    **Raises:**

    A `ValueError` that names the key path if structures or shapes differ; a `ValueError`
    if `decay` or `order` is out of range; a `TypeError` if updates are complex and their
    moments are real.
    """
    return _averaged(
        "update_moment", lambda g: g**order, updates, moments, decay, order
    )


def update_moment_per_elem_norm(
    updates: PyTree, moments: PyTree, decay: RealScalarLike, order: float | int
) -> PyTree:
    r"""The moving average $\beta\,m + (1 - \beta)\,|g|^k$ of a power of the moduli.

    **Arguments:**

    - `updates`: $g$, a tree of updates or gradients.
    - `moments`: $m$, a tree like `updates`, at first [`eqopt.tree.zeros_like`][] of it.
        The moments of complex updates may be real, and should be. Where `updates` has
        `None`, the moment stays unchanged.
    - `decay`: $\beta$, a number or a 0-d array in $[0, 1]$.
    - `order`: $k$, a positive number: 2 for the second moment.

    **Returns:**

    The updated `moments`, in their own dtypes. They are computed in at least float32;
    the derivative at $g = 0$ is finite for $k \ge 1$.

    **Raises:**

    A `ValueError` that names the key path if structures or shapes differ, and a
    `ValueError` if `decay` or `order` is out of range.
    """
    owner = "update_moment_per_elem_norm"
    return _averaged(
        owner, lambda g: _modulus_to(order, g), updates, moments, decay, order
    )


def _averaged(
    owner: str, power: Any, updates: PyTree, moments: PyTree, decay: Any, order: Any
) -> PyTree:
    decay = _within(owner, "decay", decay)
    check_interval(owner, "order", order, 0, includes_low=False)
    return elementwise(
        owner,
        lambda m, g: decay * m + (1 - decay) * power(g),
        {"moments": moments, "updates": updates},
    )


def _modulus_to(order: float | int, g: Any) -> Any:
    if order % 2 == 0:
        return _numerics.abs_sq(g) ** int(order // 2)
    return _modulus(g) ** order


def _modulus(g: Any) -> Any:
    if not jnp.iscomplexobj(g):
        return jnp.abs(g)
    is_zero = g == 0  # where the derivative would be NaN
    return jnp.where(is_zero, 0, jnp.abs(jnp.where(is_zero, 1, g)))


def update_infinity_moment(
    updates: PyTree, moments: PyTree, decay: RealScalarLike, eps: RealScalarLike
) -> PyTree:
    r"""The decaying maximum $\max(\beta\,m,\; |g| + \varepsilon)$ of the moduli.

    **Arguments:**

    - `updates`: $g$, a tree of updates or gradients.
    - `moments`: $m$, a tree like `updates`, at first zeros. The moments of complex
        updates are real. Where `updates` has `None`, the moment stays unchanged.
    - `decay`: $\beta$, a number or a 0-d array in $[0, 1]$.
    - `eps`: $\varepsilon \ge 0$, a number or a 0-d array.

    **Returns:**

    The updated `moments`, in their own dtypes. They are computed in at least float32.
    NaN stays NaN.

    **Raises:**

    A `ValueError` that names the key path if structures or shapes differ; a
    `ValueError` if `decay` or `eps` is out of range; a `TypeError` for complex moments.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{kingma2015adam,
            author = {Kingma, Diederik P. and Ba, Jimmy},
            title = {Adam: A Method for Stochastic Optimization},
            booktitle = {International Conference on Learning Representations},
            year = {2015},
        }
        ```
    """
    owner = "update_infinity_moment"
    decay = _within(owner, "decay", decay)
    eps = _within(owner, "eps", eps, math.inf)
    instead = "Start with `eqopt.tree.zeros_like(eqopt.tree.real(updates))`."
    check_real(owner, "moments", moments, instead)
    return elementwise(
        owner,
        lambda m, g: jnp.maximum(decay * m, _modulus(g) + eps),
        {"moments": moments, "updates": updates},
    )


def bias_correction(
    moment: PyTree, decay: RealScalarLike, count: IntegerLike
) -> PyTree:
    r"""The moving average $m / (1 - \beta^t)$, corrected for its start at zero.

    **Arguments:**

    - `moment`: $m$, a tree of moments, as returned by [`eqopt.tree.update_moment`][].
    - `decay`: $\beta$, the same number as for the moments, or a 0-d array, in $[0, 1)$.
    - `count`: $t \ge 1$, the number of updates in the average, an integer or a 0-d
        integer array.

    **Returns:**

    The corrected `moment`, in its own dtypes. The divisor is
    [`eqopt.numerics.bias_correction`][], computed in at least float32.

    **Raises:**

    A `ValueError` if `decay` is out of range or `count` is not positive. Traced values
    are not checked.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{kingma2015adam,
            author = {Kingma, Diederik P. and Ba, Jimmy},
            title = {Adam: A Method for Stochastic Optimization},
            booktitle = {International Conference on Learning Representations},
            year = {2015},
        }
        ```
    """
    owner = "bias_correction"
    decay = _within(owner, "decay", decay, includes_high=False)
    check_interval(owner, "count", count, 1)
    divisor = _numerics.bias_correction(decay, jnp.asarray(count))
    return elementwise(owner, lambda m: m / divisor, {"moment": moment})


def _within(
    owner: str, name: str, value: Any, high: float = 1, includes_high: bool = True
) -> Any:
    """`value` in at least float32; raises unless it is in range."""
    value = number(owner, name, value)
    check_interval(owner, name, value, 0, high, includes_high=includes_high)
    return value
