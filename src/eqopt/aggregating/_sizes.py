"""The number of elements, and their axes."""

from collections.abc import Sequence
from typing import Any, TypeAlias

from .._transforms.privacy import batch_size
from .._types import StaticInteger, Updates


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
    return batch_size(owner, per_elt_updates, None, as_tuple(per_elt_axis))


def as_tuple(axes: Axes) -> tuple[Any, ...]:
    return tuple(axes) if isinstance(axes, Sequence) else (axes,)


def hashable(axes: Axes | None) -> Any:
    """For a static field: a tuple if there are several."""
    return tuple(axes) if isinstance(axes, Sequence) else axes
