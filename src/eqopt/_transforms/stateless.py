"""Functions as transformations."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array

from .._core import AbstractStateless, AbstractTransformation, Leafwise, equation
from .._errors import InputError
from .._trees.leaves import (
    briefly,
    disagreement,
    flatten_updates,
    is_leaf,
    is_parameter,
    keystr,
    restrict,
    type_name,
)
from .._trees.states import check_state
from .._types import Leaf, Params, PyTree, State, Updates


class Stateless(AbstractTransformation):
    """A function of the whole updates as a transformation.

    !!! example

        ```python
        sign = eqopt.Stateless(lambda updates, params: jax.tree.map(jnp.sign, updates))
        opt = eqopt.Chain(sign, eqopt.SGD(1e-3))
        ```

    **Arguments:**

    - `f`: a function of the updates and the parameters that returns the new updates.
        Where the updates are `None`, the parameters are also `None`, so that
        `jax.tree.map` works on both. The parameters are `None` if `update` gets no
        parameters.

    If `f` is an `eqx.Module`, the arrays in it are data, like hyperparameters.

    **Raises:**

    In `update`, a `ValueError` if `f` returns a tree with another structure, arrays of
    other shapes, or complex numbers for real updates. `None` stays `None`.
    """

    f: Callable[[Updates, Any], Updates]

    def init(self, params: Params) -> None:
        return None

    def update(
        self, updates: Updates, state: State, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, State]:
        check_state(self, state)
        if params is not None:
            params = restrict(params, updates)
        new = self.f(updates, params)
        return cast_like("f(updates, params)", new, updates), None


def cast_like(name: str, new: PyTree, old: PyTree) -> PyTree:
    """The result of a user's function in the dtypes of its argument, `old`.

    **Raises:**

    An error if structures or shapes differ, or if a complex array replaces a real one.
    """
    leaves, treedef = flatten_updates(old)
    new_leaves, structure = jtu.tree_flatten(new, is_leaf=is_leaf)
    if structure != treedef:
        raise InputError(disagreement(name, new, "its argument", old))
    for i, (x, like) in enumerate(zip(new_leaves, leaves, strict=True)):
        if not _fits(x, like):
            found, expected = (
                type_name(y.dtype, y.shape) if is_parameter(y) else briefly(y)
                for y in (x, like)
            )
            raise InputError(
                f"`{name}` has {found} at `{keystr(old, i)}`, but its argument has "
                f"{expected}. It must keep shapes and `None`."
            )
        new_leaves[i] = None if x is None else jnp.asarray(x, like.dtype)
    return treedef.unflatten(new_leaves)


def _fits(u: Any, g: Any) -> bool:
    if g is None or not is_parameter(u):
        return u is g
    return u.shape == g.shape and (jnp.iscomplexobj(g) or not jnp.iscomplexobj(u))


class _Model(eqx.Module):
    """A function; all but its arrays is static."""

    arrays: PyTree
    others: PyTree = eqx.field(static=True)

    def __call__(self, g: Array, p: Array | None) -> Array:
        return eqx.combine(self.arrays, self.others)(g, p)


@equation
def of_update(g: Leaf, *, f: _Model) -> Leaf:
    return f(g, None)


@equation
def of_update_and_parameter(g: Leaf, p: Leaf, *, f: _Model) -> Leaf:
    return f(g, p)


class StatelessWithTreeMap(AbstractStateless):
    """Applies a function of a single array to the update of each leaf.

    !!! example

        ```python
        sign = eqopt.StatelessWithTreeMap(lambda g, p: jnp.sign(g))
        opt = eqopt.Chain(sign, eqopt.SGD(1e-3))
        ```

    **Arguments:**

    - `f`: a function of an array of updates and the array of parameters that returns
        the new array of updates. Both are in at least float32, as in an
        [`eqopt.equation`][]. The second one is `None` if `update` gets no parameters.

    `f` is compiled once for each shape and dtype of a leaf. If it is an `eqx.Module`,
    the arrays in it are data, like hyperparameters. Write such a Module for a function
    that would otherwise close over arrays.
    """

    f: Callable[[Array, Any], Array]

    def leafwise(
        self, state: None, params: Params | None = None, **extra: Any
    ) -> Leafwise:
        f = _Model(*eqx.partition(self.f, eqx.is_array))
        equation = of_update if params is None else of_update_and_parameter
        return Leafwise(equation, shared={"f": f})
