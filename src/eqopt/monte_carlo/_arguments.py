"""Checked arguments of the estimators: parameters, distributions, functions."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array

from .._arguments.checks import check_integer
from .._errors import InputError
from .._trees.keys import as_key
from .._trees.leaves import briefly, map_parameters
from .._types import Key, PyTree
from ..numerics._numerics import wide_dtype


def sample_keys(owner: str, key: Key, num_samples: Any, low: int = 1) -> Any:
    """A key for each sample."""
    return jr.split(as_key(key), check_integer(owner, "num_samples", num_samples, low))


def real_parameters(owner: str, params: PyTree) -> PyTree:
    """The arrays of `params` to differentiate with respect to; `None` for the rest."""
    arrays = map_parameters(jnp.asarray, params)
    leaves = jtu.tree_leaves(arrays)
    if not leaves or any(map(jnp.iscomplexobj, leaves)):
        raise InputError(
            owner,
            f"`params` must have floating-point arrays, and none that is complex, but is "
            f"{briefly(params)}. Convert numbers with `jnp.asarray(x, jnp.float32)`.",
        )
    return arrays


def build(dist_builder: Callable[..., Any], params: PyTree) -> Any:
    """The distribution of `params`: a tuple or a list is unpacked into arguments."""
    spread = isinstance(params, tuple | list)
    return dist_builder(*params) if spread else dist_builder(params)


def real_number(owner: str, name: str, y: Any) -> Array:
    """`y` in at least float32; raises an error unless it is one real number."""
    if not eqx.is_array_like(y) or np.shape(y) != () or jnp.iscomplexobj(y):
        raise InputError(
            owner, f"{name} must be one real number, but is {eqx.tree_pformat(y)}."
        )
    return jnp.asarray(y, wide_dtype(jnp.result_type(y)))


def real_function(
    owner: str, function: Callable[[Any], Any], is_smooth: bool = False
) -> Callable[[Any], Array]:
    """`function` of one sample, its values checked, in at least float32.

    `is_smooth`: whether to reject integers, which have no derivative.
    """

    def value(x: Any) -> Array:
        y = function(x)
        if is_smooth:
            check_smooth(owner, "`function`", y)
        return real_number(owner, "the result of `function` for one sample", y)

    return value


def check_smooth(owner: str, name: str, x: PyTree) -> None:
    """Raises an error if `x` has no floating-point numbers, as for discrete samples."""
    is_smooth = lambda leaf: isinstance(leaf, float) or eqx.is_inexact_array(leaf)
    if not any(map(is_smooth, jtu.tree_leaves(x))):
        raise InputError(
            owner,
            f"{name} must be differentiated, but gives {eqx.tree_pformat(x)}. Use "
            "`score_function_jacobians`, which needs no derivatives.",
        )
