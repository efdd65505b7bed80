"""eqopt transformations as Optax transformations."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import optax
from jaxtyping import Array, PyTree

from ..._arguments.extra import for_a_part
from ..._core.transformation import AbstractTransformation
from ..._trees.leaves import is_inexact, parameters
from ..._types import Params, State, Updates


def to_optax(opt: Any) -> optax.GradientTransformationExtraArgs:
    """An eqopt optimizer or transformation, for code that expects Optax.

    !!! example

        ```python
        import optax
        from eqopt.interop.optax import to_optax

        tx = optax.chain(optax.clip(1.0), to_optax(eqopt.Muon(1e-2)))
        ```

    You can use it in `optax.chain`, `optax.masked`, `optax.partition` and other
    wrappers of Optax, in Flax's `TrainState` and in `nnx.Optimizer`. Extra arguments of
    `update` are passed to `opt`, except for names that no part of it reads.

    Optax adds an update to every array. So arrays that are not parameters in eqopt,
    such as integer arrays, get updates of zero. Python floats are parameters, as in
    Optax.

    The hyperparameters are fixed at their current values in `opt`. Functions that are
    compiled with the transformation contain these values, even if they are arrays.

    **Arguments:**

    - `opt`: any [`eqopt.AbstractTransformation`][].

    **Returns:**

    An `optax.GradientTransformationExtraArgs` with the same state as `opt`. From this
    state and the parameters, `opt.eval_params` returns the parameters to evaluate with.

    **Raises:**

    A `TypeError` if `opt` is something else. In `update`, a `TypeError` if an extra
    argument probably has the wrong name, such as `loss` instead of `value`.
    """
    if not isinstance(opt, AbstractTransformation):
        raise TypeError(
            f"to_optax: `opt` must be an eqopt transformation, but is {_said(opt)}"
        )

    def init(params: Params) -> State:
        return opt.init(_floats_as_arrays(params))

    def update(
        updates: Updates, state: State, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, State]:
        given, params = _floats_as_arrays(updates), _floats_as_arrays(params)
        # A chain of Optax also passes the arguments of its other parts.
        extra = for_a_part(opt, extra)
        if type(params).__module__.startswith("flax.nnx"):
            state = _as_made(opt, state, params)
        updates, state = opt.update(parameters(given), state, params, **extra)
        return eqx.combine(updates, _zeros_for_others(given, params)), state

    return optax.GradientTransformationExtraArgs(init, update)


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


def _said(opt: Any) -> str:
    if isinstance(opt, optax.GradientTransformation):
        return "already an Optax transformation. Use it directly."
    if isinstance(opt, type):
        return f"the class {opt.__name__}. Create an instance of it."
    return f"a {type(opt).__module__}.{type(opt).__qualname__}."


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
