"""Caches of what is made from functions, such as compiled kernels.

A cache must not keep a user's function alive: a program that creates a new optimizer
with a new lambda in each round would keep all of them, with a megabyte of compiled code
for each. So what is made from a user's function is stored in its attributes, and both go
at once.
"""

import functools
import types
from collections.abc import Callable
from typing import Any, TypeVar

import jax.tree_util as jtu


_Made = TypeVar("_Made", bound=Callable)

# The number of results that a cache keeps, and those that a function keeps for it.
SIZE = 256


class _Found(dict):
    """Results that stay in this process: a copy of the function starts without them."""

    def __reduce__(self) -> tuple:
        return _Found, ()


def cached(make: _Made) -> _Made:
    """`make`, a function of hashable arguments, which returns its old results."""
    shared = functools.lru_cache(SIZE)(make)
    name = f"_eqopt_{make.__qualname__}"

    @functools.wraps(make)
    def find(*key: Any) -> Any:
        fn = _users_function(key)
        if fn is None:
            return shared(*key)
        found = vars(fn).setdefault(name, _Found())
        if (result := found.get(key)) is None:
            if len(found) >= SIZE:
                found.clear()
            result = found.setdefault(key, make(*key))
        return result

    setattr(find, "cache_clear", shared.cache_clear)  # noqa: B010
    return find  # type: ignore  # it has the same signature


def _users_function(key: Any) -> Callable | None:
    """A function of the user in nested tuples, if there is one."""
    rest = [key]
    while rest:
        x = rest.pop()
        if isinstance(x, tuple):
            rest.extend(x)
        elif callable(x) and _is_users(x):
            return x
    return None


def _is_users(fn: Any) -> bool:
    """Whether it is a function from outside the package that can have attributes.

    A callable `eqx.Module` cannot: it is a tree, and its attributes are its children.
    """
    module = getattr(fn, "__module__", None) or ""
    is_ours = module.startswith(f"{__package__}.")
    is_function = isinstance(fn, types.FunctionType) or hasattr(fn, "__wrapped__")
    return is_function and not is_ours and jtu.all_leaves([fn])
