"""eqopt transformations as Optax transformations."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import optax
from jaxtyping import Array

from ..._core import AbstractTransformation
from ..._trees.leaves import is_inexact, parameters
from ..._types import Params, PyTree, State, Updates


def to_optax(opt: AbstractTransformation) -> optax.GradientTransformationExtraArgs:
    """An eqopt optimizer or transformation, for code that expects Optax.

    !!! example

        ```python
        import optax
        from eqopt.interop.optax import to_optax

        tx = optax.chain(optax.clip(1.0), to_optax(eqopt.Muon(1e-2)))
        ```

    You can use it in `optax.chain`, `optax.masked`, `optax.partition` and other
    wrappers of Optax, in Flax's `TrainState` and in `nnx.Optimizer`. Extra arguments of
    `update` are passed to `opt`. As in Optax, names that no part of it reads do nothing.

    Optax adds an update to every array. So arrays that are not parameters in eqopt,
    such as integer arrays, get updates of zero. Python floats are parameters, as in
    Optax.

    The hyperparameters are fixed at their current values in `opt`. Functions that are
    compiled with the transformation contain these values, even if they are arrays.

    Two results are equal, and share compiled functions, if they come from equal
    optimizers. But a result equals only itself if `opt` has no hash, because it contains
    an array, a list or a dictionary, such as a mask.

    **Arguments:**

    - `opt`: any [`eqopt.AbstractTransformation`][].

    **Returns:**

    An `optax.GradientTransformationExtraArgs` with the same state as `opt`. From this
    state and the parameters, `opt.eval_params` returns the parameters to evaluate with.
    """
    try:
        key, hashed = opt, hash(opt)
    except TypeError:  # an array has no hash
        key, hashed = object(), 0
    init, update = (_FunctionOf(fn, opt, hashed, key) for fn in (_init, _update))
    return optax.GradientTransformationExtraArgs(init, update)


@dataclasses.dataclass(frozen=True)
class _FunctionOf:
    """Calls `fn` with `opt` as its first argument.

    It equals others with the same `fn` and an equal `key`. A compiled step of Flax's
    `TrainState` needs the hash in each call, so it is stored: for Muon, it takes 90 us.
    """

    fn: Callable[..., Any]
    opt: AbstractTransformation = dataclasses.field(compare=False)
    hashed: int = dataclasses.field(repr=False)
    key: Any = dataclasses.field(repr=False, hash=False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(self.opt, *args, **kwargs)


def _init(opt: AbstractTransformation, params: Params) -> State:
    return opt.init(parameters(_floats_as_arrays(params)))


def _update(
    opt: AbstractTransformation,
    updates: Updates,
    state: State,
    params: Params | None = None,
    **extra: Any,
) -> tuple[Updates, State]:
    given, params = _floats_as_arrays(updates), _floats_as_arrays(params)
    if type(params).__module__.startswith("flax.nnx"):
        state = _as_made(opt, state, params)
    updates, state = opt.update(parameters(given), state, params, **extra)
    return eqx.combine(updates, _zeros_for_others(given, params)), state


def _as_made(opt: AbstractTransformation, state: State, params: Params) -> State:
    """`state` with the containers that `init` makes.

    `nnx.Optimizer` replaces tuples and modules inside a tree of parameters by its own
    mappings, which sort their keys.
    """
    flatten = jtu.tree_flatten_with_path
    named = lambda path: jtu.keystr(path, simple=True, separator="/")
    (made, treedef), (found, _) = map(
        flatten, (eqx.filter_eval_shape(opt.init, params), state)
    )
    leaves = {named(path): x for path, x in found}
    names = [named(path) for path, _ in made]
    return treedef.unflatten(map(leaves.get, names)) if {*names} == {*leaves} else state


def _floats_as_arrays(tree: PyTree) -> PyTree:
    is_number = lambda x: isinstance(x, float | complex | np.inexact)
    return jax.tree.map(lambda x: jnp.asarray(x) if is_number(x) else x, tree)


def _zeros_for_others(updates: PyTree, params: PyTree | None) -> PyTree:
    """Zeros instead of updates of integers and JAX's `float0`."""
    others = eqx.filter(updates, is_inexact, inverse=True)
    if not jax.tree.leaves(others):
        return others
    return jax.tree.map(
        lambda g, p: None if is_inexact(g) else _zeros_like(g, p),
        updates,
        updates if params is None else params,
    )


def _zeros_like(g: Any, p: Any) -> Array:
    dtype = jnp.result_type(p)
    # JAX's gradient of an integer cannot be added to anything.
    return jnp.zeros(jnp.shape(g), bool if dtype == jax.dtypes.float0 else dtype)
