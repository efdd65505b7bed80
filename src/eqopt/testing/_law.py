"""What a law is: a name, a statement, and a check that raises a `Breach`."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .._trees.leaves import briefly, type_name
from .._types import PyTree
from ..tree._like import unwrap_random_key_data
from ._trial import Trial


# Relative to the largest number of a leaf. Cancellation leaves fewer digits than a dtype
# has, and a small atol is for numbers that are zero except for rounding.
RTOL, ATOL, ROUNDINGS = 1e-4, 3e-6, 16


class Difference(NamedTuple):
    """`path`, and what is there in either tree."""

    path: str
    found: str
    expected: str

    def __str__(self) -> str:
        return f"has {self.found} at `{self.path}`, expected {self.expected}"


def of_types(found: PyTree, expected: PyTree) -> Difference | None:
    """The first difference in structure, shape, dtype or weak type.

    Leaves that are not arrays must be equal.
    """
    return _of_types(found, expected, ())


def _of_types(found: Any, expected: Any, path: tuple) -> Difference | None:
    ours, structure = _children(found)
    theirs, expected_structure = _children(expected)
    at = jtu.keystr(path) or "(the root)"
    if structure != expected_structure:
        return Difference(at, *_nodes(found, expected))
    if jtu.treedef_is_leaf(structure):
        texts = _leaf(found), _leaf(expected)
        return None if texts[0] == texts[1] else Difference(at, *texts)
    for (key, one), (_, other) in zip(ours, theirs, strict=True):
        difference = _of_types(one, other, path + key)
        if difference is not None:
            return difference
    return None


def _children(node: Any) -> tuple[list, Any]:
    return jtu.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)


def _leaf(x: Any) -> str:
    if not hasattr(x, "dtype"):
        return f"{briefly(x)} of type {type(x).__name__}"
    is_weak = getattr(x, "weak_type", False)
    return type_name(x.dtype, x.shape) + " with a weak type" * is_weak


def _nodes(found: Any, expected: Any) -> tuple[str, str]:
    ours, theirs = _node(found), _node(expected)
    if ours == theirs:  # so what differs is static
        return f"{ours} with {_static(found)}", f"{theirs} with {_static(expected)}"
    return ours, theirs


def _node(x: Any) -> str:
    if x is None or jtu.all_leaves([x]):  # a stored array has a dtype, but is no leaf
        return "None" if x is None else _leaf(x)
    if isinstance(x, dict):
        return f"a dict with the keys {briefly([*x])}"
    length = f" of length {len(x)}" if type(x) in (list, tuple) else ""
    return f"a {type(x).__name__}{length}"


def _static(x: Any) -> str:
    if not dataclasses.is_dataclass(x):
        return "other static data"
    static = [f.name for f in dataclasses.fields(x) if f.metadata.get("static")]
    return ", ".join(f"{name}={briefly(getattr(x, name))}" for name in static)


def of_values(
    found: PyTree, expected: PyTree, base: PyTree = None, *, exactly: bool = False
) -> Difference | None:
    """The first difference in types or in numbers, except for rounding.

    Numbers are compared by their distance from `base`, if given, so that a wrong update
    is seen in a large parameter.
    """
    difference = of_types(found, expected)
    if difference is not None:
        return difference
    ours, theirs = (jtu.tree_leaves_with_path(tree) for tree in (found, expected))
    from_here = [None] * len(ours) if base is None else jax.tree.leaves(base)
    for (path, x), (_, y), b in zip(ours, theirs, from_here, strict=True):
        if not hasattr(x, "dtype"):
            continue
        x, y, b = _numbers(x), _numbers(y), None if b is None else _numbers(b)
        far = _differ(x, y) if exactly else _apart(x, y, b)
        if far.any():
            at = np.unravel_index(np.argmax(far), far.shape)
            return Difference(_element(path, at), str(x[at]), str(y[at]))
    return None


def _numbers(x: Any) -> np.ndarray:
    return np.asarray(unwrap_random_key_data(x))


def _differ(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    is_inexact = jnp.issubdtype(x.dtype, jnp.inexact)
    both_nan = np.isnan(x) & np.isnan(y) if is_inexact else False
    return (x != y) & ~np.asarray(both_nan)


def _apart(x: np.ndarray, y: np.ndarray, base: np.ndarray | None) -> np.ndarray:
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return _differ(x, y)
    atol = ATOL if base is None else 0.0
    eps, wide = float(jnp.finfo(x.dtype).eps), np.result_type(np.float64, x.dtype)
    if not np.issubdtype(x.dtype, np.inexact):  # bfloat16
        wide = np.float64
    different = _differ(x, y)
    x, y = x.astype(wide), y.astype(wide)
    base = np.zeros_like(y) if base is None else base.astype(wide)
    size = lambda z: np.max(np.abs(z), initial=0.0, where=np.isfinite(z))
    rounding = ROUNDINGS * eps * (size(y) + size(base))
    tolerance = RTOL * size(y - base) + rounding + atol
    with np.errstate(invalid="ignore"):
        return different & ~(np.abs(x - y) <= tolerance)


def first_not_finite(tree: PyTree, *, only_nan: bool = False) -> Difference | None:
    """The first NaN, and the first infinity except for `only_nan`."""
    for path, x in jtu.tree_leaves_with_path(tree):
        if not eqx.is_inexact_array(x):
            continue
        bad = np.isnan(np.asarray(x)) if only_nan else ~np.isfinite(np.asarray(x))
        if bad.any():
            at = np.unravel_index(np.argmax(bad), bad.shape)
            text = "a number other than NaN" if only_nan else "a finite number"
            return Difference(_element(path, at), str(np.asarray(x)[at]), text)
    return None


def _element(path: tuple, at: tuple) -> str:
    """The key path of one number of an array."""
    return jtu.keystr(path) + "".join(f"[{i}]" for i in at) or "(the root)"


#
# A law
#


class Breach(Exception):
    """What was found where, what was expected, and a fix if it is not the law's fix."""

    def __init__(self, problem: str, fix: str = ""):
        super().__init__(problem)
        self.fix = fix


class Law(NamedTuple):
    """One law.

    - `check`: raises a `Breach` if a trial breaks the law.
    - `statement`: the law in a sentence.
    - `fix`: the likely fix.
    """

    check: Callable[[Trial], None]
    statement: str
    fix: str


# By name, in the order of their definitions.
BY_NAME: dict[str, Law] = {}


def law(fix: str) -> Callable[[Callable[[Trial], None]], Callable[[Trial], None]]:
    """Registers a check, whose name and docstring are the name of a law and the law."""

    def register(check: Callable[[Trial], None]) -> Callable[[Trial], None]:
        assert check.__doc__
        name = check.__name__.strip("_")
        BY_NAME[name] = Law(check, " ".join(check.__doc__.split()), fix)
        return check

    return register


def expect_that(holds: bool, problem: str, fix: str = "") -> None:
    """Raises a `Breach` unless something holds."""
    if not holds:
        raise Breach(problem, fix)


def expect(
    difference: Difference | None, what: str, like: str = "", fix: str = ""
) -> None:
    """Raises a `Breach` if there is a difference from what is like something else."""
    expect_that(difference is None, f"{what} {difference} {like}".rstrip(), fix)


def expect_same(
    when: str, found: Any, expected: Any, base: Any, like: str, fix: str = ""
) -> None:
    """Raises a `Breach` unless a model and a state are the same, except for rounding.

    `base` is the model before what is compared.
    """
    expect(of_values(found[0], expected[0], base), f"{when} model", like, fix)
    expect(of_values(found[1], expected[1]), f"{when} state", like, fix)
