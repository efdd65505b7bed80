"""Matrices: which arrays are matrices, and equations that apply to each of them.

`dimension_numbers.py` says which axes of an array are the sides of a matrix. By default,
`recognition.py` finds them from the layers and the names of axes (`named.py`). `axes.py`
finds the axes of each leaf, and `layouts.py` says how a leaf is a stack of matrices.

`matrixwise.py` is the base class of methods for matrices. It turns an equation of one
matrix into an equation of a leaf (`on_matrices.py`), which joins equal matrices into
batches, which take turns (`batches.py`). Or devices divide a batch (`division.py`), with
its state if that is large (`stacks.py`).
"""

from .axes import (
    Axes,
    DimensionNumbers,
    axes_of,
    check_known,
    map_matrices,
    resolve_dimension_numbers,
    size,
)
from .batches import Work
from .dimension_numbers import MatrixDimensionNumbers, Numbers, Unknown, as_tuple
from .division import AbstractWhole, Division, use_division
from .layouts import Layout, Pieces, is_layout, make_slot, map_layouts, mask_matrices
from .matrixwise import AbstractContracting, AbstractMatrixwise, Rows
from .named import Named, named_leaves
from .recognition import (
    Own,
    axes_of_inputs,
    by_class,
    find_stacks,
    is_field,
    of_layers,
    of_own,
    shapes_of_one,
)
