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
from .._trees.keys import as_key
from .._trees.leaves import map_parameters
from .._types import Key, PyTree
from ..numerics._numerics import wide_dtype


def sample_keys(owner: str, key: Key, num_samples: Any, low: int = 1) -> Any:
    """A key for each sample."""
    return jr.split(as_key(key), check_integer(owner, "num_samples", num_samples, low))


def real_parameters(owner: str, params: PyTree) -> PyTree:
    """The arrays of `params` to differentiate with respect to; `None` for the rest."""
    arrays = map_parameters(jnp.asarray, params)
    if not jtu.tree_leaves(arrays):
        raise TypeError(
            f"{owner}: `params` must have a floating-point array to differentiate "
            f"with respect to, but is {params!r}. Convert numbers with "
            "`jnp.asarray(x, jnp.float32)`."
        )
    for path, leaf in jtu.tree_leaves_with_path(arrays):
        if jnp.iscomplexobj(leaf):
            raise TypeError(
                f"{owner}: `params` must have real arrays, but has an array of dtype "
                f"{leaf.dtype} at `{jtu.keystr(path) or '(the root)'}`. Pass its real "
                "and imaginary parts."
            )
    return arrays


def build(
    owner: str,
    dist_builder: Callable[..., Any],
    params: PyTree,
    methods: tuple[str, ...] = ("sample",),
) -> Any:
    """The distribution of `params`: a tuple or a list is unpacked into arguments."""
    spread = isinstance(params, tuple | list)
    dist = dist_builder(*params) if spread else dist_builder(params)
    missing = [name for name in methods if not callable(getattr(dist, name, None))]
    if missing:
        raise TypeError(
            f"{owner}: `dist_builder` must return a distribution with "
            f"{_listed(methods)}, but returned a {type(dist).__name__} without "
            f"{_listed(missing)}. Subclass `eqopt.monte_carlo.AbstractDistribution`, "
            "or wrap it in an object with these methods."
        )
    return dist


def _listed(methods: Any) -> str:
    arguments = {"sample": "key", "log_prob": "x"}
    return " and ".join(f"`{name}({arguments[name]})`" for name in methods)


def real_number(owner: str, name: str, y: Any, hint: str = "") -> Array:
    """`y` in at least float32; raises a `ValueError` unless it is one real number."""
    if not eqx.is_array_like(y) or np.shape(y) != () or jnp.iscomplexobj(y):
        raise ValueError(
            f"{owner}: {name} must be a real number, but is {described(y)}. "
            + (hint or "Sum over its axes, and return nothing else.")
        )
    return jnp.asarray(y, wide_dtype(jnp.result_type(y)))


_VALUE = "the result of `function` for one sample"


def real_function(owner: str, function: Callable[[Any], Any]) -> Callable[[Any], Array]:
    """`function` of one sample, its values checked, in at least float32."""
    return lambda x: real_number(owner, _VALUE, function(x))


def smooth_function(
    owner: str, function: Callable[[Any], Any]
) -> Callable[[Any], Array]:
    """Like `real_function`, but rejects integers, which have no derivative."""

    def value(x: Any) -> Array:
        y = function(x)
        if eqx.is_array_like(y) and not jnp.issubdtype(jnp.result_type(y), np.inexact):
            raise TypeError(
                f"{owner}: `function` is differentiated, but returned {described(y)}, "
                "which has no derivative. Use "
                "`eqopt.monte_carlo.score_function_jacobians`, which does not need "
                "derivatives."
            )
        return real_number(owner, _VALUE, y)

    return value


def described(y: Any) -> str:
    if not eqx.is_array_like(y):
        return f"of type {type(y).__name__}"
    return f"an array of shape {np.shape(y)} and dtype {jnp.result_type(y)}"
