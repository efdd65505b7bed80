"""Trees as vectors: sums, products, and multiples."""

import functools
import operator

from .._types import PyTree, RealScalarLike
from ._together import elementwise, number


def add(tree_x: PyTree, tree_y: PyTree, *other_trees: PyTree) -> PyTree:
    r"""The sum $x + y + \dots$ of two or more trees, array by array.

    !!! example

        ```python
        model = eqopt.tree.add(model, updates)
        ```

    **Arguments:**

    - `tree_x`: any pytree, such as a whole Equinox model or gradients.
    - `tree_y`, `other_trees`: trees with the structure of `tree_x` and arrays of the
        same shapes. `None` instead of an array adds nothing.

    **Returns:**

    `tree_x` with the sums, in the dtypes of its arrays. They are computed in at least
    float32 and rounded once. Everything else in `tree_x` stays unchanged.

    **Raises:**

    A `ValueError` that names the key path if structures or shapes differ, and a
    `TypeError` if complex numbers are added to real ones.
    """
    others = {f"other_trees[{i}]": tree for i, tree in enumerate(other_trees)}
    trees = {"tree_x": tree_x, "tree_y": tree_y, **others}
    fold = lambda *xs: functools.reduce(operator.add, xs)
    return elementwise("add", fold, trees)


def sub(tree_x: PyTree, tree_y: PyTree) -> PyTree:
    r"""The difference $x - y$ of two trees, array by array.

    **Arguments:**

    - `tree_x`: $x$, any pytree, such as a whole Equinox model or gradients.
    - `tree_y`: $y$, a tree with the structure of `tree_x` and arrays of the same shapes.
        `None` instead of an array subtracts nothing.

    **Returns:**

    `tree_x` with the differences, in the dtypes of its arrays. They are computed in at
    least float32 and rounded once. Everything else in `tree_x` stays unchanged.

    **Raises:**

    A `ValueError` that names the key path if structures or shapes differ, and a
    `TypeError` if a complex result would replace a real array.
    """
    return elementwise("sub", operator.sub, {"tree_x": tree_x, "tree_y": tree_y})


def mul(tree_x: PyTree, tree_y: PyTree) -> PyTree:
    r"""The product $x \odot y$ of two trees, array by array and number by number.

    **Arguments:**

    - `tree_x`: $x$, any pytree, such as a whole Equinox model or gradients.
    - `tree_y`: $y$, a tree with the structure of `tree_x` and arrays of the same shapes.
        Where it has `None`, the array of `tree_x` stays unchanged.

    **Returns:**

    `tree_x` with the products, in the dtypes of its arrays. They are computed in at least
    float32 and rounded once. Everything else in `tree_x` stays unchanged.

    **Raises:**

    A `ValueError` that names the key path if structures or shapes differ, and a
    `TypeError` if a complex result would replace a real array.
    """
    return elementwise("mul", operator.mul, {"tree_x": tree_x, "tree_y": tree_y})


def div(tree_x: PyTree, tree_y: PyTree) -> PyTree:
    r"""The quotient $x / y$ of two trees, array by array and number by number.

    **Arguments:**

    - `tree_x`: $x$, any pytree, such as a whole Equinox model or gradients.
    - `tree_y`: $y$, a tree with the structure of `tree_x` and arrays of the same shapes.
        Where it has `None`, the array of `tree_x` stays unchanged. Division by zero
        returns infinity or NaN, as in JAX.

    **Returns:**

    `tree_x` with the quotients, in the dtypes of its arrays. They are computed in at
    least float32 and rounded once. Everything else in `tree_x` stays unchanged.

    **Raises:**

    A `ValueError` that names the key path if structures or shapes differ, and a
    `TypeError` if a complex result would replace a real array.
    """
    return elementwise("div", operator.truediv, {"tree_x": tree_x, "tree_y": tree_y})


def scale(scalar: RealScalarLike | complex, tree: PyTree) -> PyTree:
    r"""The multiple $s\,x$ of a tree.

    !!! example

        ```python
        updates = eqopt.tree.scale(-1e-3, grads)
        ```

    **Arguments:**

    - `scalar`: $s$, a number or a 0-d array, of any dtype.
    - `tree`: $x$, any pytree, such as gradients or a whole model.

    **Returns:**

    `tree` with its arrays multiplied, in their own dtypes. Everything else in it stays
    unchanged.

    **Raises:**

    A `ValueError` if `scalar` has axes, and a `TypeError` if it is complex and an array
    of the tree is real.
    """
    s = number("scale", "scalar", scalar, complex_too=True)
    return elementwise("scale", lambda x: s * x, {"tree": tree})


def add_scale(
    tree_x: PyTree, scalar: RealScalarLike | complex, tree_y: PyTree
) -> PyTree:
    r"""The sum $x + s\,y$ of a tree and a multiple of another tree.

    !!! example

        ```python
        model = eqopt.tree.add_scale(model, -1e-3, grads)
        ```

    **Arguments:**

    - `tree_x`: $x$, any pytree, such as a whole Equinox model or gradients.
    - `scalar`: $s$, a number or a 0-d array, of any dtype.
    - `tree_y`: $y$, a tree with the structure of `tree_x` and arrays of the same shapes.
        `None` instead of an array adds nothing.

    **Returns:**

    `tree_x` with the sums, in the dtypes of its arrays. They are computed in at least
    float32 and rounded once: the product is not rounded before it is added. Everything
    else in `tree_x` stays unchanged.

    **Raises:**

    A `ValueError` that names the key path if structures or shapes differ, or if
    `scalar` has axes, and a `TypeError` if a complex result would replace a real array.
    """
    s = number("add_scale", "scalar", scalar, complex_too=True)
    trees = {"tree_x": tree_x, "tree_y": tree_y}
    return elementwise("add_scale", lambda x, y: x + s * y, trees)
