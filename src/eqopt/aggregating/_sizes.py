"""The number of elements, and their axes."""

import operator
from collections.abc import Sequence
from typing import Any, TypeAlias

from .._errors import InputError
from .._transforms.privacy import batch_size
from .._types import Params, StaticInteger, Updates


# The axes of the elements in per-element updates.
Axes: TypeAlias = StaticInteger | Sequence[StaticInteger]


def get_batch_size_from_per_elt_updates(
    per_elt_updates: Updates, per_elt_axis: Axes
) -> int:
    """Counts the elements in per-element updates.

    **Arguments:**

    - `per_elt_updates`: a tree of arrays with the elements along some axes, or `None`.
    - `per_elt_axis`: the axis of the elements, or a sequence of axes. Negative axes
        count from the end.

    **Returns:**

    The size of the axis, or the product of the sizes of all axes. It is 1 if there are
    no arrays.

    **Raises:**

    A `ValueError` that names the key path if an array has no such axis, another number
    of elements than the others, or no elements.
    """
    owner = "get_batch_size_from_per_elt_updates"
    axes = hashable(per_elt_axis)
    check_axes(owner, axes)
    return size_of(owner, per_elt_updates, None, axes)


def size_of(owner: str, updates: Updates, params: Params | None, axes: Axes) -> int:
    """Counts the elements, and checks them as `batch_size` does."""
    return batch_size(owner, updates, params, as_tuple(axes))


def as_tuple(axes: Axes) -> tuple[int, ...]:
    numbers = hashable(axes)
    return numbers if isinstance(numbers, tuple) else (numbers,)


def hashable(axes: Any) -> Any:
    """For a static field: Python integers, in a tuple if there are several, or `None`."""
    try:
        if isinstance(axes, Sequence):
            return tuple(map(operator.index, axes))
        return None if axes is None else operator.index(axes)
    except TypeError:
        raise InputError(
            None, f"`per_elt_axis` must be one or more integers, but is {axes!r}."
        ) from None


def check_axes(owner: str, axes: Axes | None) -> None:
    """Raises an error unless `axes` is `None` or one or more different axes."""
    if axes is not None and not 0 < len(as_tuple(axes)) == len(set(as_tuple(axes))):
        raise InputError(
            owner, f"`per_elt_axis` must be one or more different axes, but is {axes}."
        )
