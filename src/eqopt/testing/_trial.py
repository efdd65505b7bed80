"""One transformation with one model, and a short training that several laws look at."""

import collections
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._core import AbstractTransformation
from .._trees.leaves import parameters
from .._types import PyTree
from ..tree._like import cast, is_typed_key


# What `update` and `step` get in addition: the same in each step, or made from the
# parameters.
Extra = Mapping[str, Any] | Callable[[Any], Mapping[str, Any]]

# How often JAX has traced one of the functions below.
traces: collections.Counter[str] = collections.Counter()

# Tests of eqopt trace programs without compiling them, which takes most of the time.
compiler: Callable[[Callable], Callable] = eqx.filter_jit

# The same, for a function that is given all its arguments but the first.
donating: Callable[[Callable], Callable] = functools.partial(
    eqx.filter_jit, donate="all-except-first"
)

STEPS = 4


def compiled(function: Callable) -> Callable:
    """A function of a module, compiled: it is traced once for all trials."""
    return compiled_by(compiler, function)


@functools.cache
def compiled_by(compiler: Callable, function: Callable) -> Callable:
    return compiler(function)


def step(opt, extra, grads, state, params):
    """What `opt.step` returns."""
    traces["step"] += 1
    return opt.step(grads, state, params, **given(extra, params))


def both(opt, extra, grads, state, params):
    """What `update` and `step` return, in one program."""
    traces["both"] += 1
    extra = given(extra, params)
    updated = opt.update(grads, state, params, **extra)
    return updated, opt.step(grads, state, params, **extra)


def given(extra: Extra, params: PyTree) -> Mapping[str, Any]:
    return extra(params) if callable(extra) else extra


def grads_of(params: PyTree, step: int, dtype: Any = None) -> PyTree:
    """Gradients that differ from step to step, like `params` or of a given dtype."""
    leaves, treedef = jax.tree.flatten(parameters(params))
    shapes, dtypes = [p.shape for p in leaves], [dtype or p.dtype for p in leaves]
    return treedef.unflatten(normal([1, step], shapes, dtypes))


def normal(seed: Any, shapes: list, dtypes: list) -> list[Array]:
    """Normally distributed numbers, the same in each dtype except for rounding.

    From NumPy, because JAX compiles a program for each shape and dtype.
    """
    rng = np.random.default_rng(seed)

    def one(shape, dtype):
        is_complex = jnp.issubdtype(dtype, jnp.complexfloating)
        real, imag = rng.normal(size=(2, *shape)).astype(np.float32)
        value = real + 1j * imag if is_complex else real
        return jax.device_put(np.asarray(value, dtype))

    return [one(*leaf) for leaf in zip(shapes, dtypes, strict=True)]


def copied(model: PyTree) -> PyTree:
    """`model` with an own buffer for each array, and without weak types.

    Parameters that are arrays of NumPy become arrays of JAX.
    """

    def copy(x):
        if is_typed_key(x):
            data = jnp.array(jax.random.key_data(x))
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
        if not (eqx.is_array(x) or eqx.is_inexact_array(x)):
            return x
        return jnp.array(x, dtype=x.dtype)

    return jax.tree.map(copy, model)


class Moment(NamedTuple):
    """A moment in training.

    - `updated`: what `update` returned in the step before it; the rest is from `step`.
    - `traces`: how often `both` had been traced by then.
    """

    params: PyTree
    state: PyTree
    updated: Any
    traces: int


def trained(
    both: Callable, params: PyTree, state: PyTree, steps: int, grad_dtype: Any = None
) -> list[Moment]:
    """The moments in a training, where `both` returns what `update` and `step` do."""
    moments = [Moment(params, state, None, traces["both"])]
    for i in range(steps):
        now = moments[-1]
        grads = grads_of(params, i, grad_dtype)
        updated, (new, new_state) = both(grads, now.state, now.params)
        moments.append(Moment(new, new_state, updated, traces["both"]))
    return moments


def member(tree: PyTree, i: int) -> PyTree:
    """Number `i` of the trees over which a `vmap` mapped."""
    return jax.tree.map(lambda x: x[i] if eqx.is_array(x) else x, tree)


class Trial:
    """What the laws are asked of.

    **Arguments:**

    - `opt`, `model`, `extra`: as in [`eqopt.testing.check_laws`][].
    """

    def __init__(
        self, opt: AbstractTransformation, model: PyTree, extra: Extra | None = None
    ):
        self.opt, self.model, self.extra = opt, copied(model), extra or {}

    def both(self, grads: PyTree, state: PyTree, params: PyTree) -> Any:
        return compiled(both)(self.opt, self.extra, grads, state, params)

    def step(self, grads: PyTree, state: PyTree, params: PyTree) -> Any:
        """Not compiled."""
        return self.opt.step(grads, state, params, **given(self.extra, params))

    def update(self, grads: PyTree, state: PyTree, params: PyTree) -> Any:
        """Not compiled."""
        return self.opt.update(grads, state, params, **given(self.extra, params))

    @functools.cached_property
    def state(self) -> PyTree:
        return self.opt.init(jax.tree.map(lambda x: x, self.model))  # a dict to spoil

    @property
    def trail(self) -> list[Moment]:
        """The first moments in training. If it fails once, it fails for each law."""
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    @functools.cached_property
    def outcome(self) -> list[Moment] | Exception:
        """The trail, or the error that the training raised."""
        try:
            return trained(self.both, self.model, self.state, STEPS)
        except Exception as error:
            return error

    def cast(self, dtype: Any) -> "Trial":
        """The same in another precision."""
        return Trial(self.opt, cast(self.model, dtype), self.extra)
