"""How arrays of the state and parameters are stored: unchanged, or in another form."""

import abc
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Inexact

from .._arguments.construction import Module
from .._errors import InputError
from .._typecheck import no_type_check
from .._types import PyTree
from .sharding import unsharded


class AbstractStored(Module):
    """An object that replaces an array in a state, or among the parameters.

    Kernels load it before an equation runs, and store the results of the equation. Code
    that handles whole trees calls `load` and `store_like` of this module. For trees,
    masks and checkpoints it is a leaf with the shape and dtype of the replaced array.

    !!! example

        ```python
        class Halves(AbstractStored):
            half: Array

            @property
            def like(self):
                return self.half

            def load(self):
                return 2 * self.half

            def store(self, new):
                return Halves((new / 2).astype(self.half.dtype))
        ```
    """

    _is_stored = True

    # Whether derivatives pass through `store`: false if it rounds to a small set of
    # codes.
    _is_differentiable = True

    # Whether it is in the memory of the host, not of the device.
    _is_elsewhere = False

    # Whether `store` measures the whole array before it stores an element. Then there is
    # `measure(new)`, and `store(new)` is `store_measured(new, measure(new))`.
    _is_measured = False

    @property
    @abc.abstractmethod
    def like(self) -> jax.ShapeDtypeStruct | Array:
        """The shape and the dtype of the array that this object replaces."""

    @abc.abstractmethod
    def load(self) -> Inexact[Array, "..."]:
        """The array; it may have a wider dtype than `like`."""

    @abc.abstractmethod
    def store(self, new: Inexact[Array, "..."]) -> "AbstractStored":
        """`new`, in at least float32, stored in the same form as this.

        Its arrays have the same shapes and dtypes as the arrays of this object.
        """

    def fetched(self) -> Any:
        """The same in the memory of the device, if this is for another memory."""
        return self

    def put_back(self) -> Any:
        """The same in the memory that this is for."""
        return self

    @property
    def shape(self) -> tuple[int, ...]:
        return self.like.shape

    @property
    def ndim(self) -> int:
        return len(self.like.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.like.shape))

    @property
    def dtype(self) -> Any:
        return self.like.dtype


class AbstractHidden(Module):
    """The part of a parameter in the state, in addition to the array in the model.

    The array in the model, which the forward pass uses, is the part that is *seen*.
    """

    # Whether each element is stored without regard to its position.
    _is_by_element = False

    @property
    @abc.abstractmethod
    def dtype(self) -> Any:
        """The dtype of the parameter in full precision, at least float32."""

    @abc.abstractmethod
    def fits(self, seen: Inexact[Array, "..."]) -> bool:
        """Whether `seen`, by its shape and dtype, can be the other part."""

    @abc.abstractmethod
    def join(self, seen: Inexact[Array, "*leaf"]) -> Inexact[Array, "*leaf"]:
        """The parameter in full precision, made from both parts."""

    @abc.abstractmethod
    def split(
        self, new: Inexact[Array, "*leaf"], seen: Inexact[Array, "*leaf"]
    ) -> tuple[Inexact[Array, "*leaf"], "AbstractHidden"]:
        """Both parts of `new`, a parameter in full precision.

        They have the same types as these arrays and as `seen`, the old array.
        """


class Joined(AbstractStored):
    """Both parts of an array."""

    seen: Inexact[Array, "..."]
    hidden: AbstractHidden

    @property
    def _made_by(self) -> str:
        return getattr(self.hidden, "_made_by", "another one")

    @property
    def like(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(self.seen.shape, self.hidden.dtype)

    @no_type_check  # called once per leaf, like the next one
    def load(self) -> Any:
        return self.hidden.join(self.seen)

    @no_type_check
    def store(self, new: Any) -> Any:
        seen, hidden = self.hidden.split(new, self.seen)
        return Joined(seen, hidden)


def is_stored(x: Any) -> bool:
    # A quarter of the time that `isinstance` takes, for an abstract class.
    return getattr(type(x), "_is_stored", False)


def is_elsewhere(x: Any) -> bool:
    """Whether `x` is stored in the memory of the host."""
    return getattr(type(x), "_is_elsewhere", False)


def is_leaf(x: Any) -> bool:
    """Whether `x` is a position in a tree like the parameters: `None`, or stored."""
    return x is None or getattr(type(x), "_is_stored", False)


def standard_promotion() -> Any:
    """A context for `load` and `store` outside kernels: JAX's standard promotion."""
    return jax.numpy_dtype_promotion("standard")


def has_stored(tree: PyTree) -> bool:
    return any(map(is_stored, jax.tree.leaves(tree, is_leaf=is_stored)))


def load(tree: PyTree) -> PyTree:
    """`tree` with arrays instead of stored leaves."""
    loaded = lambda x: x.load().astype(x.dtype) if is_stored(x) else x
    with standard_promotion():
        return jax.tree.map(loaded, tree, is_leaf=is_stored)


def fetched(tree: PyTree) -> PyTree:
    """`tree`, all of it in the memory of the device."""
    of = lambda x: x.fetched() if is_stored(x) else x
    return jax.tree.map(of, tree, is_leaf=is_stored)


def put_back(tree: PyTree) -> PyTree:
    """`tree`, with each stored leaf in the memory that it is for."""
    of = lambda x: x.put_back() if is_stored(x) else x
    return jax.tree.map(of, tree, is_leaf=is_stored)


def shapes_if_stored(tree: PyTree) -> PyTree:
    """`tree` with the shapes of everything stored, for code that only needs shapes."""
    of = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype)
    return jax.tree.map(lambda x: of(x) if is_stored(x) else x, tree, is_leaf=is_stored)


def store_like(old: PyTree, new: PyTree) -> PyTree:
    """`new`, a tree of arrays, with the leaves stored that are stored in `old`."""
    store = lambda x, y: x.store(y) if is_stored(x) else y
    with standard_promotion():
        return jax.tree.map(store, old, new, is_leaf=is_leaf)


def joined(params: PyTree, hidden: PyTree) -> PyTree:
    """`params` with the seen part of each parameter joined with its hidden part."""
    leaves, treedef = jax.tree.flatten(params, is_leaf=is_leaf)
    both = zip(leaves, treedef.flatten_up_to(hidden), strict=True)
    of = lambda p, h: p if h is None else Joined(of_jax(p), h)
    return treedef.unflatten(of(p, h) for p, h in both)


def of_jax(p: Any) -> Any:
    """`p`, as an array of JAX if it is one of NumPy."""
    return jax.numpy.asarray(p) if isinstance(p, np.ndarray | np.generic) else p


def has_hidden(x: Any) -> bool:
    """Whether `x` is a state with the hidden parts of parameters."""
    return getattr(type(x), "_has_hidden", False)


def hides_params(state: PyTree) -> bool:
    """Whether a part of `state` has the hidden parts of parameters."""
    return any(map(has_hidden, jax.tree.leaves(state, is_leaf=has_hidden)))


def check_nothing_hidden(owner: object, state: PyTree) -> None:
    """Raises an error if parts inside `owner`, with this state, hide parameters."""
    if hides_params(state):
        name = type(owner).__name__
        raise InputError(
            f"`StoreParams` is inside, but {name} would change the parameters without "
            "their hidden parts. Put `StoreParams` outside: "
            f"`eqopt.StoreParams(eqopt.{name}(...), storage)`."
        )


def full_params(state: PyTree, params: PyTree) -> PyTree:
    """`params`, loaded, with all hidden parts in `state`."""
    is_own = lambda x: has_hidden(x) or hasattr(type(x), "_full_params")
    for node in jax.tree.leaves(fetched(state), is_leaf=is_own):
        if hasattr(type(node), "_full_params"):
            params = node._full_params(params)
        elif has_hidden(node):
            is_hidden = lambda x: x is None or isinstance(x, AbstractHidden)
            # In this order, because `hidden` may belong to a part of the parameters.
            params = load(jax.tree.map(_whole, node.hidden, params, is_leaf=is_hidden))
    return params


def _whole(hidden: Any, p: Any) -> Any:
    if hidden is None:
        return p
    # In another buffer than the state, so that both can be donated.
    return jax.numpy.array(load(Joined(of_jax(p), _fitted(p, hidden))), copy=True)


def _fitted(p: Any, hidden: Any) -> Any:
    """`hidden`, the other part of `p`, without the padding of `eqopt.ZeRO1`."""
    if hidden.fits(of_jax(p)):
        return hidden
    own = tuple(map(slice, p.shape))
    is_padded = lambda x: x.ndim == p.ndim and x.shape > p.shape
    return jax.tree.map(lambda x: unsharded(x)[own] if is_padded(x) else x, hidden)


def taken_apart(params: PyTree) -> tuple[PyTree, PyTree]:
    """The inverse of `joined`: the seen and the hidden parts of `params`."""
    leaves, treedef = jax.tree.flatten(params, is_leaf=is_leaf)
    seen = [x.seen if isinstance(x, Joined) else x for x in leaves]
    hidden = [x.hidden if isinstance(x, Joined) else None for x in leaves]
    return treedef.unflatten(seen), treedef.unflatten(hidden)


def on_arrays(
    run: Callable[[Any, Any], tuple[Any, Any]], state: Any, params: Any, is_step: bool
) -> tuple[Any, Any]:
    """`run(state, params)` for `update` or `step`, with stored leaves loaded."""
    if not has_stored((state, params)):
        return run(state, params)
    result, new = run(*load((state, params)))
    return store_like(params, result) if is_step else result, store_like(state, new)


def with_arrays(method: Callable[..., tuple[Any, Any]]) -> Callable:
    """`update` or `step` of a transformation that handles trees itself, on arrays."""
    is_step = method.__name__ == "step"

    @functools.wraps(method)
    def with_them(
        self: Any, updates: Any, state: Any, params: Any = None, **extra: Any
    ) -> tuple[Any, Any]:
        run = lambda state, params: method(self, updates, state, params, **extra)
        return on_arrays(run, state, params, is_step)

    return with_them
