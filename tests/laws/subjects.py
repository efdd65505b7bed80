"""Parameters and gradients for the laws, and compiled calls that they share."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Int, PyTree


class Awkward(eqx.Module):
    """A model with one of everything that is not a parameter."""

    layers: eqx.nn.Linear  # stacked
    bias: Array
    numpy: np.ndarray
    count: Int[Array, ""]
    activation: Callable
    rate: float
    training: bool
    nothing: None
    tied: dict[str, Any]
    name: str = eqx.field(static=True)

    def __init__(self, key, dtype):
        keys = jr.split(key, 2)
        self.layers = eqx.filter_vmap(
            lambda k: eqx.nn.Linear(4, 4, key=k, dtype=dtype)
        )(keys)
        self.bias = jnp.arange(4, dtype=dtype) / 2
        self.numpy = np.array([0.5, -1.0, 2.0, 0.25], dtype)
        self.count = jnp.zeros((), jnp.int32)
        self.activation = jnp.tanh
        self.rate, self.training, self.nothing = 0.5, True, None
        self.tied = {"scale": jnp.ones((), dtype), "flags": jnp.array([True, False])}
        self.name = "awkward"

    def __call__(self, x):
        for i in range(2):
            layer = jax.tree.map(
                lambda x, i=i: x[i] if eqx.is_array(x) else x, self.layers
            )
            x = self.activation(layer(x)) * self.tied["scale"]
        return x + self.bias * jnp.asarray(self.numpy)


def awkward(dtype=jnp.float32) -> Awkward:
    return Awkward(jr.key(0), dtype)


def params_of(dtype=jnp.float32, seed=0) -> PyTree:
    """A small tree with a matrix, a vector, a scalar and a `None`.

    Each shape is another kernel to compile, which is all that the laws spend time on.
    """
    keys = jr.split(jr.key(seed), 3)
    matrix, vector, scalar = (
        _normal(key, shape, dtype)
        for key, shape in zip(keys, [(3, 2), (3,), ()], strict=True)
    )
    return {"matrix": matrix, "more": [vector, None, {"scalar": scalar}]}


def grads_of(params: PyTree, step: int, dtype=None) -> PyTree:
    """Gradients that differ from step to step, like `params` or of a given dtype."""
    arrays = eqx.filter(params, eqx.is_inexact_array)
    leaves, treedef = jax.tree.flatten(arrays)
    keys = jr.split(jr.fold_in(jr.key(1), step), len(leaves))
    return treedef.unflatten(
        _normal(key, p.shape, dtype or p.dtype)
        for key, p in zip(keys, leaves, strict=True)
    )


def _normal(key, shape, dtype):
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return jr.normal(key, shape, dtype)
    return jr.normal(key, shape, jnp.float32).astype(dtype)


@eqx.filter_jit
def update(opt, grads, state, params):
    return opt.update(grads, state, params)


@eqx.filter_jit
def step(opt, grads, state, params):
    return opt.step(grads, state, params)


@eqx.filter_jit
def init(opt, params):
    return opt.init(params)


def train(opt, params, steps, *, call=step, grads=grads_of):
    """Some steps on made-up gradients: the parameters and the state."""
    state = init(opt, params)
    for i in range(steps):
        params, state = call(opt, grads(params, i), state, params)
    return params, state


def arrays(tree: PyTree) -> list:
    return jax.tree.leaves(eqx.filter(tree, eqx.is_array))


def avals(tree: PyTree) -> PyTree:
    """Shapes, dtypes and weak types of the arrays, with the tree structure."""
    return jax.tree.map(lambda x: jax.typeof(x) if eqx.is_array(x) else x, tree)


def assert_close(left: PyTree, right: PyTree, rtol=3e-5, atol=3e-6) -> None:
    """Equal trees, but for rounding: the bias corrections cancel all but a few digits."""
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for a, b in zip(arrays(left), arrays(right), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=rtol, atol=atol)


def assert_equal(left: PyTree, right: PyTree) -> None:
    assert bool(eqx.tree_equal(left, right)), f"{left} differs from {right}"
