"""How an array represents a matrix or a stack of matrices, in the user's words."""

import dataclasses
from typing import TypeAlias

from .._arguments.construction import Explained


def as_tuple(axes):
    return (axes,) if isinstance(axes, int) else axes


@dataclasses.dataclass(frozen=True)
class MatrixDimensionNumbers(metaclass=Explained):
    """Describes how a parameter represents a matrix, or a stack of matrices.

    Matrices are stacked along all axes that are neither reduced nor output axes, such
    as the axes of layers made with `eqx.filter_vmap`. By default, methods for matrices
    use the numbers of [`eqopt.groups.layer_matrices`][].

    !!! example

        ```python
        # A stack of convolution kernels, (layer, out, in, height, width):
        numbers = eqopt.MatrixDimensionNumbers((-3, -2, -1), -4)
        ```

    **Arguments:**

    - `reduction_axis`: the axis, or a tuple of axes, that the layer sums over: its
        inputs. Negative axes count from the end. Defaults to 0.
    - `output_axis`: the axis, or a tuple of axes, of its outputs. Defaults to 1.

    **Raises:**

    A `ValueError` if an axis is both a reduction axis and an output axis.
    """

    reduction_axis: int | tuple[int, ...] = 0
    output_axis: int | tuple[int, ...] = 1

    def __post_init__(self):
        both = {*as_tuple(self.reduction_axis)} & {*as_tuple(self.output_axis)}
        if both:
            raise ValueError(
                f"MatrixDimensionNumbers: axis {min(both)} cannot be both a reduction "
                "axis and an output axis."
            )


class Unknown:
    """In place of the numbers of an array that may be a stack of matrices, or not."""


Numbers: TypeAlias = MatrixDimensionNumbers | type[Unknown] | None
