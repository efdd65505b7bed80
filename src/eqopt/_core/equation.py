"""Equations: the mathematics of one leaf."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeAlias, overload

import equinox as eqx
import jax
from beartype.roar import BeartypeCallHintReturnViolation

from .._errors import InputError
from .._typecheck import checked


class Equation:
    """The result of [`eqopt.equation`][] for a function of arrays."""

    name: str
    leaves: tuple[str, ...]  # the positional arguments after the update
    shared: tuple[str, ...]  # the keyword-only arguments
    modules: frozenset[str] = frozenset()  # shared values that are modules
    elementwise: bool = False  # see `equation`
    keeps_shape: bool = True  # whether the result has the shape of the update
    is_divided: bool = False  # whether devices divide its matrices

    def __init__(self, fn: Callable[..., Any], elementwise: bool = False) -> None:
        parameters = inspect.signature(fn).parameters.values()
        leaves = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        self.name = fn.__name__
        self.shared = tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
        if not leaves or len(leaves) + len(self.shared) != len(parameters):
            raise TypeError(
                f"The equation `{self.name}` must have a signature such as `(g, mu, p, "
                "*, decay)`: the update, slots or `p`, then keyword-only shared values."
            )
        self.leaves, self.elementwise = tuple(leaves[1:]), elementwise
        is_module = lambda x: isinstance(x, type) and issubclass(x, eqx.Module)
        self.modules = frozenset(p.name for p in parameters if is_module(p.annotation))
        functools.update_wrapper(self, fn)
        is_annotated = bool(getattr(fn, "__annotations__", None))
        self._fn = checked(fn, self.name) if is_annotated else fn

    def __call__(self, *leaves: Any, **shared: Any) -> Any:
        return self._fn(*leaves, **shared)

    def of_rows(
        self,
        operation: Any,
        of_each: Callable[
            [Any, dict[int, tuple[Any, ...]]], dict[int, tuple[Any, ...]]
        ],
        values: Any,
        rows: dict[int, tuple[Any, ...]],
    ) -> dict[int, tuple[Any, ...]]:
        """The results for the rows of all leaves, by default for one after the other.

        `operation` and `values` are a `leafwise.Operation` and its `leafwise.Values`.
        """
        return of_each(values, rows)

    def __repr__(self) -> str:
        return f"<equation {self.name}>"


@overload
def equation(fn: Callable[..., Any], *, elementwise: bool = False) -> Equation: ...


@overload
def equation(
    fn: None = None, *, elementwise: bool = False
) -> Callable[[Callable[..., Any]], Equation]: ...


def equation(fn: Callable[..., Any] | None = None, *, elementwise: bool = False) -> Any:
    """Declares a function of arrays to be the equation of a leafwise transformation.

    Write the function with the symbols of the paper. The name and position of an
    argument determine its value:

    - The first argument is the update of the leaf.
    - Each other positional argument is the field of the state with that name. The
        argument `p` is the leaf of the parameters.
    - Keyword-only arguments are values that all leaves share, such as hyperparameters,
        bias corrections and norms. Bools, strings, functions and `None` are static;
        numbers are traced.

    The function returns the new update, then the new value of each field of the state,
    in the order of the arguments. If there are no such fields, it returns only the
    update, not a tuple.

    Inputs are in at least float32, and results are stored in the dtypes of their slots,
    so an equation never converts a dtype. A slot may have another shape than the leaf,
    or be a small tree of arrays (for example one per axis). An equation is traced once
    per distinct shape and dtype of the leaf, not once per leaf. Annotations of jaxtyping
    are optional, and are checked then. The arrays of an elementwise equation, and `p` in
    each equation, must have the shape of the update; in an elementwise equation, other
    arguments may also be numbers.

    **Arguments:**

    - `fn`: the function.
    - `elementwise`: whether each element of the results depends only on the elements at
        the same position of the arguments, and on numbers. State that is stored in blocks
        of 8 or 4 bits then moves less memory on a GPU. Defaults to `False`.

    **Returns:**

    The equation. It can be called like `fn`. Without `fn`, a decorator.

    **Raises:**

    A `TypeError` if the function has no positional argument, or if it has arguments
    such as `*args` or `**kwargs`.

    !!! example

        ```python
        @eqopt.equation(elementwise=True)
        def heavy_ball(g, trace, *, decay):
            trace = decay * trace + g
            return trace, trace
        ```
    """
    if fn is None:
        return functools.partial(Equation, elementwise=elementwise)
    return Equation(fn, elementwise)


def is_static(value: Any) -> bool:
    """Whether a value that all leaves share is part of the compiled program."""
    if callable(value):
        return not any(map(eqx.is_array, jax.tree.leaves(value)))
    return value is None or isinstance(value, bool | str)


# For what is made of an equation once. It keeps the last ones only, because a program may
# make functions in a loop, and each of them has a megabyte of compiled code.
cached = functools.lru_cache(256)

# What an equation raises if its arguments or its results do not fit.
MISFITS = InputError, BeartypeCallHintReturnViolation

# The positional and the keyword-only arguments of an equation.
Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]


class ShapeMismatch(InputError):
    """The arrays of a leaf do not fit each other: `misfits.misfit` says which ones."""
