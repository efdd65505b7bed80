"""Functions as transformations."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from .._core import AbstractStateless, AbstractTransformation, Leafwise, equation
from .._errors import InputError
from .._trees.leaves import align, disagreement, flatten_updates, keystr, type_name
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
        self,
        updates: Updates,
        state: State,
        params: Params | None = None,
        **extra: Any,
    ) -> tuple[Updates, None]:
        check_state(self, state)
        leaves, treedef = flatten_updates(updates)
        if params is not None:
            ps = align(treedef, params, "params", updates)
            pairs = zip(leaves, ps, strict=True)
            params = treedef.unflatten(None if g is None else p for g, p in pairs)
        new = self.f(updates, params)
        new_leaves, new_treedef = flatten_updates(new)
        if new_treedef != treedef:
            name = "f(updates, params)"
            raise InputError(
                "Stateless", f"{disagreement(name, new, 'updates', updates)}"
            )
        for i, (u, g) in enumerate(zip(new_leaves, leaves, strict=True)):
            if not _fits(u, g):
                found, expected = (
                    None if x is None else type_name(x.dtype, x.shape) for x in (u, g)
                )
                raise InputError(
                    "Stateless",
                    f"`f(updates, params)` has {found} at "
                    f"`{keystr(updates, i)}`, but `updates` has {expected}. `f` must "
                    "keep shapes and `None`, and return real updates for real ones.",
                )
            new_leaves[i] = None if u is None else u.astype(g.dtype)
        return treedef.unflatten(new_leaves), None


def _fits(u: Any, g: Any) -> bool:
    if u is None or g is None:
        return u is g
    return u.shape == g.shape and (jnp.iscomplexobj(g) or not jnp.iscomplexobj(u))


class _Function(eqx.Module):
    """A function; all but its arrays is static."""

    arrays: PyTree
    others: PyTree = eqx.field(static=True)

    def __call__(self, g: Array, p: Array | None) -> Array:
        return eqx.combine(self.arrays, self.others)(g, p)


@equation
def of_update(g: Leaf, *, f: _Function) -> Leaf:
    return f(g, None)


@equation
def of_update_and_parameter(g: Leaf, p: Leaf, *, f: _Function) -> Leaf:
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
        f = _Function(*eqx.partition(self.f, eqx.is_array))
        equation = of_update if params is None else of_update_and_parameter
        return Leafwise(equation, shared={"f": f})
