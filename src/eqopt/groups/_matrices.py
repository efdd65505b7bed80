import jax.tree_util as jtu

from .._matrices import MatrixDimensionNumbers, Unknown, of_layers
from .._trees.leaves import is_leaf
from .._trees.stored import shapes_if_stored
from .._types import Params, PyTree


def layer_matrices(params: Params) -> PyTree[MatrixDimensionNumbers]:
    """The matrices in a model, as the methods for matrices find them.

    - Weights of `eqx.nn.Linear`, convolutions and recurrent cells, stacked or not. Other
        arrays of the layers of Equinox, such as embeddings, norms and biases, are not
        matrices.
    - If a module replaces such a weight, as for weight normalisation, its array with the
        shape of the weight is the matrix, and its other arrays are not.
    - Arrays with named axes, as in haliax, are what their layer names them. `In` and
        `Out` make a matrix, also with several axes each, and `Block` is a stack.
        Embeddings, norms and biases are not matrices.
    - Arrays with two axes that are in no such layer, with the inputs first.
    - If a module or container has stacked layers, made with `eqx.filter_vmap`, and all of
        its arrays have the axes of the stack first, it counts as stacked. Its own arrays
        then are stacks of what they are in a single layer: `(layers, width)` is a stack
        of vectors, and `(layers, inputs, outputs)` a stack of matrices.

    Nothing says whether any other array with three or more axes is a stack of matrices.
    Here, it is not a matrix. If a method for matrices has no
    `weight_dimension_numbers`, it raises an error for such an array. Use
    [`eqopt.groups.matrices`][] and [`eqopt.groups.stacked`][] to say what it is, and
    [`eqopt.groups.routes`][] to see what an optimizer makes of it.

    !!! example

        ```python
        print(eqopt.groups.table(eqopt.groups.layer_matrices, model))
        ```

    **Arguments:**

    - `params`: the model.

    **Returns:**

    A tree of [`eqopt.MatrixDimensionNumbers`][] with the structure of `params`, and
    `None` at leaves that are not matrices.
    """
    _, treedef = jtu.tree_flatten(params, is_leaf=is_leaf)
    numbers = of_layers(shapes_if_stored(params))
    return treedef.unflatten(None if n is Unknown else n for n in numbers)
