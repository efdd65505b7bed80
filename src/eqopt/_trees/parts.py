"""Parts of the parameters, which a mask or a label chooses.

A part lacks some of what a rule or an optimizer was made for. That is an error only in
the whole model. And whether an array is in a stack of layers follows from the whole.
"""

import contextlib
from collections.abc import Generator
from contextvars import ContextVar

import jax.tree_util as jtu

from .._types import PyTree
from .stored import is_leaf


# The whole, if what is called sees a part of it; otherwise empty.
_whole: ContextVar[tuple[PyTree, ...]] = ContextVar("_whole", default=())


@contextlib.contextmanager
def seeing_part(params: PyTree, updates: PyTree = None) -> Generator[None, None, None]:
    """What is called in it sees a part of `params`, or of `updates` if that is `None`."""
    token = _whole.set((whole_of(updates if params is None else params),))
    try:
        yield
    finally:
        _whole.reset(token)


def sees_part() -> bool:
    return bool(_whole.get())


def whole_of(tree: PyTree) -> PyTree:
    """The tree of which `tree` is a part; `tree` itself if it is not known as a part."""
    if not sees_part():
        return tree
    (whole,) = _whole.get()
    parts, treedef = jtu.tree_flatten(tree, is_leaf=is_leaf)
    leaves, other = jtu.tree_flatten(whole, is_leaf=is_leaf)
    # A transformation in between may have changed the structure, or only the shapes.
    shape = lambda x: getattr(x, "shape", None)
    fits = lambda part, x: part is None or shape(part) == shape(x)
    is_part = treedef == other and all(map(fits, parts, leaves))
    return whole if is_part else tree
