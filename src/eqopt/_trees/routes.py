"""A report of what the parts of an optimizer do to each parameter."""

import contextlib
import dataclasses
from collections.abc import Generator, Sequence
from typing import Any

import jax.tree_util as jtu
import numpy as np

from .._jax_internals import is_traced
from .._types import PyTree
from .leaves import is_leaf, is_parameter
from .masks import mask_out
from .stored import shapes_if_stored


def is_optimizer(x: Any) -> bool:
    """Whether `x` is a transformation."""
    return hasattr(x, "_route") and not isinstance(x, type)


@dataclasses.dataclass
class Found:
    """What is reported of one parameter."""

    parts: list[tuple[tuple[str, ...], str]] = dataclasses.field(default_factory=list)
    axes: Any = None
    weight_decay: Any = None
    factor: Any = None


class Report:
    """Collects what parts of an optimizer do, from each part's `_route`.

    The trees have the structure of the parameters, with `None` instead of parameters
    that the part does not see.
    """

    def __init__(self, params: PyTree):
        leaves = jtu.tree_leaves(shapes_if_stored(params), is_leaf=is_leaf)
        self.found = [Found() if is_parameter(x) else None for x in leaves]
        self._place: tuple[str, ...] = ()

    @contextlib.contextmanager
    def inside(self, name: str) -> Generator[None, None, None]:
        """What is reported in this context belongs to the optimizer of this name."""
        before, self._place = self._place, (*self._place, name)
        try:
            yield
        finally:
            self._place = before

    def take(self, name: str, tree: PyTree, axes: Sequence[Any] | None = None) -> None:
        """The part `name` transforms all parameters in `tree`, or those with `axes`."""
        for i, found in self._seen(tree):
            if axes is None or axes[i] is not None:
                found.parts.append((self._place, name))
                found.axes = found.axes if axes is None else axes[i]

    def decay(self, tree: PyTree, value: Any) -> None:
        """The parameters in `tree` have this weight decay, if it is not zero.

        It is a number, a schedule, or a transformation with such a `weight_decay`.
        """
        while hasattr(value, "weight_decay"):
            value = value.weight_decay
        value = known(value)
        if not isinstance(value, int | float) or value != 0:
            for _, found in self._seen(tree):
                found.weight_decay = value

    def multiply(self, tree: PyTree, factors: Any) -> None:
        """The updates in `tree` are multiplied: by one factor, or by a list of them.

        `None` means by 1.
        """
        for i, found in self._seen(tree):
            factor = factors[i] if isinstance(factors, list) else factors
            if factor is not None:
                new = known(factor)
                old = 1.0 if found.factor is None else found.factor
                # A schedule stays: its product with a number is no number.
                if _is_known(old):
                    found.factor = old * new if _is_known(new) else new

    def _seen(self, tree: PyTree) -> list[tuple[int, Found]]:
        leaves = jtu.tree_leaves(shapes_if_stored(tree), is_leaf=is_leaf)
        pairs = enumerate(zip(leaves, self.found, strict=True))
        return [(i, f) for i, (x, f) in pairs if f is not None and is_parameter(x)]


def route(part: Any, report: Report, params: PyTree) -> None:
    """Reports what a transformation does: its parts, or else that it takes everything."""
    name, chain = type(part).__name__, getattr(part, "chain", None)
    if chain is not None:
        with report.inside(name):
            chain._route(report, params)
        return
    inner = getattr(part, "inner", None)
    if inner is not None:  # a wrapper, which does the same to all parameters
        inner._route(report, params)
        return
    report.take(name, params)
    decay = getattr(part, "weight_decay", None)
    if decay is not None:
        mask = getattr(decay, "mask", getattr(part, "mask", None))
        seen = params if mask is None else mask_out(params, mask, params)
        report.decay(seen, decay)


def _is_known(value: Any) -> bool:
    return isinstance(value, int | float | np.ndarray)


def known(value: Any) -> Any:
    """`value` as a number or an array of NumPy, if it is one and not traced."""
    if not hasattr(value, "dtype") or is_traced(value):
        return value
    return float(value) if value.ndim == 0 else np.asarray(value)


def takes_examples(part: Any) -> str | None:
    """The name of the first part that takes the gradients of single examples."""
    if getattr(part, "_takes_examples", False):
        return type(part).__name__
    inner = getattr(part, "chain", part)
    is_part = lambda x: x is not inner and hasattr(x, "_route")
    parts = [inner] if inner is not part else jtu.tree_leaves(part, is_leaf=is_part)
    found = (takes_examples(x) for x in parts if hasattr(x, "_route"))
    return next(filter(None, found), None)
