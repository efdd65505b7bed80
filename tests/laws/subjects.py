"""Parameters and gradients for the laws, and compiled calls that they share."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Int, PyTree

from eqopt.testing import _trial
from eqopt.testing._trial import Moment, compiled_by, grads_of, normal, trained

from ..interpreter import interpreted
from .row import Row


class Awkward(eqx.Module):
    """A model with a leaf of every kind that is not a parameter."""

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


@functools.cache
def awkward(dtype=jnp.float32) -> Awkward:
    return Awkward(jr.key(0), dtype)


def params_of(dtype=jnp.float32, seed=0) -> PyTree:
    """A small tree with a matrix, a vector, a scalar and a `None`.

    It has few shapes, because the laws spend most of their time compiling a kernel for
    each shape.
    """
    matrix, vector, scalar = normal(seed, [(3, 2), (3,), ()], 3 * [dtype])
    return {"matrix": matrix, "more": [vector, None, {"scalar": scalar}]}


# Laws here and in `test_shipped.py` share these programs.
_step, _both = (compiled_by(interpreted, f) for f in (_trial.step, _trial.both))


def step(opt, grads, state, params):
    return _step(opt, {}, grads, state, params)


def both(opt, grads, state, params):
    """What `update` and `step` return, in one program that all laws share."""
    return _both(opt, {}, grads, state, params)


def train(opt, params, steps, *, call=step, grads=grads_of):
    """The parameters and the state after some steps on made-up gradients."""
    state = opt.init(params)
    for i in range(steps):
        params, state = call(opt, grads(params, i), state, params)
    return params, state


# A row has a trail for each precision, and the laws of a row run one after the other.
@functools.lru_cache(maxsize=8)
def trail(row: Row, dtype=jnp.float32, grad_dtype=None, steps=5) -> list[Moment]:
    """The first moments in training, shared by all laws that compare results."""
    opt, params = row(), params_of(dtype)
    call = functools.partial(both, opt)
    return trained(call, params, opt.init(params), steps, grad_dtype)


def moment(row: Row, steps: int) -> tuple[PyTree, PyTree]:
    """Parameters and state after some steps."""
    return trail(row)[steps][:2]


def arrays(tree: PyTree) -> list:
    return jax.tree.leaves(eqx.filter(tree, eqx.is_array))


def all_finite(tree: PyTree) -> bool:
    """Checks in NumPy, because JAX would compile a program for each shape and dtype."""
    return all(np.isfinite(np.asarray(x)).all() for x in arrays(tree))


def avals(tree: PyTree) -> PyTree:
    """Shapes, dtypes and weak types of the arrays, with the tree structure."""

    def aval(x):
        x = jax.typeof(x) if eqx.is_array(x) else x
        if not hasattr(x, "weak_type"):
            return x
        return jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=x.weak_type)

    return jax.tree.map(aval, tree)


def assert_close(left: PyTree, right: PyTree, rtol=3e-5, atol=3e-6) -> None:
    """Equal except for rounding: bias corrections leave only a few digits."""
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for a, b in zip(arrays(left), arrays(right), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=rtol, atol=atol)


def assert_equal(left: PyTree, right: PyTree) -> None:
    assert bool(eqx.tree_equal(left, right)), f"{left} differs from {right}"
