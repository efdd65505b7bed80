"""Clips the gradient of each example of a batch, and adds them up."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Inexact, Int

from .._arguments.checks import check_interval
from .._errors import InputError
from .._platforms import compute_once
from .._trees.leaves import align, flatten_updates, keystr
from .._types import Leaf, Params, PyTree, RealScalarLike, Updates
from ..microbatching._clip_factors import clip_factors
from ..numerics._numerics import (
    abs_sq,
    at_least_float32,
    common_dtype,
    safe_sqrt,
    wide_dtype,
)


def per_example_global_norm_clip(
    grads: Updates, l2_norm_clip: RealScalarLike
) -> tuple[Updates, Int[Array, ""]]:
    r"""Clips the gradient of each example by its global norm, and adds them up.

    $$\sum_i g_i \cdot \min\left(1, \frac{C}{\|g_i\|_2}\right)$$

    **Arguments:**

    - `grads`: per-example gradients: a tree with arrays whose first axis is the axis of
        the examples, or `None`.
    - `l2_norm_clip`: $C \ge 0$.

    **Returns:**

    The sum, a tree of arrays without that axis, and the number of clipped examples, a
    0-d int32 array. The sum is in at least float32, so that noise is added before any
    rounding.

    **Raises:**

    A `ValueError` that names the key path if an array has no first axis, or another
    number of examples than the others; also if `l2_norm_clip` is negative or NaN.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{abadi2016deep,
            author = {Abadi, Martin and Chu, Andy and Goodfellow, Ian and McMahan, H.
                      Brendan and Mironov, Ilya and Talwar, Kunal and Zhang, Li},
            title = {Deep Learning with Differential Privacy},
            booktitle = {ACM SIGSAC Conference on Computer and Communications Security},
            year = {2016},
        }
        ```
    """
    check_interval("per_example_global_norm_clip", "l2_norm_clip", l2_norm_clip, 0)
    leaves, treedef = flatten_updates(grads)
    batch = batch_size("per_example_global_norm_clip", grads)
    factors = factors_of(leaves, l2_norm_clip, batch)
    total = treedef.unflatten(
        None if g is None else weighted_sum(factors, g) for g in leaves
    )
    return total, _number_clipped(factors)


def per_example_layer_norm_clip(
    grads: Updates, global_l2_norm_clip: RealScalarLike, uniform: bool = True
) -> tuple[Updates, PyTree[Int[Array, ""]]]:
    r"""Clips the gradient of each example by its norm in each leaf, and adds them up.

    $$\sum_i g_i \cdot \min\left(1, \frac{C_l}{\|g_i\|_2}\right) \quad
      \text{in the leaf } l, \qquad \sum_l C_l^2 = C^2.$$

    So the global norm of the contribution of an example is at most $C$.

    **Arguments:**

    - `grads`: per-example gradients: a tree with arrays whose first axis is the axis of
        the examples, or `None`.
    - `global_l2_norm_clip`: $C \ge 0$.
    - `uniform`: whether $C_l^2 = C^2 / L$, for $L$ leaves. Otherwise $C_l^2$ is
        proportional to the number of parameters in the leaf.

    **Returns:**

    The sum, a tree of arrays without the first axis in at least float32, and a tree
    with the same structure that has the number of clipped examples for each leaf, 0-d
    int32 arrays.

    **Raises:**

    A `ValueError` that names the key path if an array has no first axis, or another
    number of examples than the others; also if `global_l2_norm_clip` is negative or NaN.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{mcmahan2018learning,
            author = {McMahan, H. Brendan and Ramage, Daniel and Talwar, Kunal and Zhang,
                      Li},
            title = {Learning Differentially Private Recurrent Language Models},
            booktitle = {International Conference on Learning Representations},
            year = {2018},
        }
        ```
    """
    check_interval(
        "per_example_layer_norm_clip", "global_l2_norm_clip", global_l2_norm_clip, 0
    )
    leaves, treedef = flatten_updates(grads)
    batch = batch_size("per_example_layer_norm_clip", grads)
    sizes = [
        0 if g is None else 1 if uniform else math.prod(g.shape[1:]) for g in leaves
    ]
    sums, numbers = [], []
    for g, size in zip(leaves, sizes, strict=True):
        if g is None:
            sums.append(None)
            numbers.append(None)
            continue
        share = math.sqrt(size / max(1, sum(sizes)))
        factors = factors_of([g], global_l2_norm_clip, batch, share)
        sums.append(weighted_sum(factors, g))
        numbers.append(_number_clipped(factors))
    return treedef.unflatten(sums), treedef.unflatten(numbers)


def batch_size(
    owner: str,
    grads: Updates,
    params: Params | None = None,
    axes: tuple[int, ...] = (0,),
    hint: str = "",
) -> int:
    """The number of examples in `grads`; raises a `ValueError` unless all leaves agree.

    `axes` are the axes of the examples; all other axes are the axes of the parameters.
    The number is 1 if there are no leaves. `hint` is added to the error for a wrong
    shape.
    """
    leaves, treedef = flatten_updates(grads)
    ps = leaves if params is None else align(treedef, params, "params", grads)
    first = None
    for i, (g, p) in enumerate(zip(leaves, ps, strict=True)):
        if g is None:
            continue
        is_known = params is not None and hasattr(p, "shape")
        size, shape = _split(g.shape, axes)
        if size is None or (is_known and shape != p.shape):
            of_parameters = f", for parameters of shape {p.shape}" if is_known else ""
            where = "their first axis" if axes == (0,) else f"the axes {axes}"
            raise InputError(
                owner,
                f"it takes per-example gradients, with the examples along {where}, but "
                f"the array at `{keystr(grads, i)}` has shape {g.shape}{of_parameters}. "
                f"{_HOW_TO}{hint}",
            )
        first = first or (i, size)
        if size != first[1] or size == 0:
            raise InputError(
                owner,
                "it takes gradients of the same one or more examples in all arrays, but "
                f"there are {first[1]} at `{keystr(grads, first[0])}` and {size} at "
                f"`{keystr(grads, i)}`. {_HOW_TO}",
            )
    return 1 if first is None else first[1]


def _split(
    shape: tuple[int, ...], axes: tuple[int, ...]
) -> tuple[int | None, tuple[int, ...]]:
    """The size along `axes` (`None` if these do not exist), and the other axes."""
    named = {axis % len(shape) for axis in axes if -len(shape) <= axis < len(shape)}
    if len(named) < len(axes):
        return None, shape
    rest = tuple(n for i, n in enumerate(shape) if i not in named)
    return math.prod(shape[axis] for axis in named), rest


_HOW_TO = (
    "Compute them with `eqx.filter_vmap(eqx.filter_grad(loss), in_axes=(None, "
    "0))(model, batch)`."
)


def factors_of(
    leaves: list[Any], clip: Any, batch: int, share: float = 1.0
) -> Float[Array, "batch"]:
    """The factor for each example, for a norm of at most `share * clip`."""
    parts = [_squared_norms(g) for g in leaves if g is not None] or [jnp.zeros(batch)]
    dtype = common_dtype(*(part.dtype for part in parts))
    stacked = jnp.stack([part.astype(dtype) for part in parts])
    norms = safe_sqrt(jnp.sum(compute_once(stacked), 0))
    return clip_factors(norms, jnp.asarray(clip, dtype) * jnp.asarray(share, dtype))


@jax.jit
def _squared_norms(g: Inexact[Array, "batch *leaf"]) -> Float[Array, "batch"]:
    g = at_least_float32(g)
    return jnp.sum(abs_sq(g), tuple(range(1, g.ndim)))


@jax.jit
def weighted_sum(
    factors: Float[Array, "batch"], g: Inexact[Array, "batch *leaf"]
) -> Leaf:
    """The sum over the examples, at least float32."""
    dtype = wide_dtype(g.dtype)
    # A matrix product needs no temporary array, and is much faster on a CPU than a sum.
    # Accelerators must not round its factors: the norm must stay within the bound.
    highest = lax.Precision.HIGHEST
    return jnp.tensordot(factors.astype(dtype), g.astype(dtype), 1, precision=highest)


def _number_clipped(factors: Float[Array, "batch"]) -> Int[Array, ""]:
    return jnp.sum(factors < 1, dtype=jnp.int32)
