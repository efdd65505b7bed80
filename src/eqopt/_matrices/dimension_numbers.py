"""How an array represents a matrix or a stack of matrices, in the user's words."""

import dataclasses
from typing import TypeAlias

from .._arguments.construction import Explained
from .._errors import InputError


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
        # Queries, keys and values in one `eqx.nn.Linear`, with 8 heads of each:
        fused = eqopt.MatrixDimensionNumbers(-1, -2, output_blocks=24)
        # With 8 heads for queries and 2 for keys and values, a matrix for each of the 3:
        grouped = eqopt.MatrixDimensionNumbers(-1, -2, output_blocks=(512, 128, 128))
        ```

    **Arguments:**

    - `reduction_axis`: the axis, or a tuple of axes, that the layer sums over: its
        inputs. Negative axes count from the end. Defaults to 0.
    - `output_axis`: the axis, or a tuple of axes, of its outputs. Defaults to 1.
    - `reduction_blocks`, `output_blocks`: the blocks into which the first axis of that
        side is split: a number of equal blocks, or a tuple with the size of each block.
        Each block is a separate matrix, such as an attention head, or the queries in a
        fused projection. Defaults to 1.

    **Raises:**

    A `ValueError` if there are no blocks, or blocks without elements. Methods raise one
    with the key path if the axes or the blocks do not fit the parameter.
    """

    reduction_axis: int | tuple[int, ...] = 0
    output_axis: int | tuple[int, ...] = 1
    reduction_blocks: int | tuple[int, ...] = 1
    output_blocks: int | tuple[int, ...] = 1

    @property
    def has_blocks(self) -> bool:
        """Whether a matrix is split into blocks."""
        return self.reduction_blocks != 1 or self.output_blocks != 1

    def __post_init__(self) -> None:
        for name in ("reduction_blocks", "output_blocks"):
            blocks = getattr(self, name)
            if not as_tuple(blocks) or min(as_tuple(blocks)) < 1:
                raise InputError(
                    f"`{name}` must be a positive number of "
                    f"equal blocks, or their sizes, but is {blocks}."
                )


class Unknown:
    """In place of the numbers of an array that may be a stack of matrices, or not."""


Numbers: TypeAlias = MatrixDimensionNumbers | type[Unknown] | None
