"""The eigenvalue of largest modulus."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
from jax import lax
from jaxtyping import Array, Inexact

from .._arguments.checks import check_number_in
from .._errors import InputError
from .._trees.keys import as_key
from .._trees.leaves import disagreement, map_parameters, parameters
from .._types import IntegerLike, Key, PyTree, RealScalarLike
from ..numerics._numerics import common_dtype, wide_dtype
from ..tree._reductions import largest, norm
from ._arguments import check_array, check_square


def power_iteration(
    matrix: Any,
    *,
    v0: PyTree = None,
    num_iters: IntegerLike = 100,
    error_tolerance: RealScalarLike = 1e-6,
    precision: lax.Precision = lax.Precision.HIGHEST,
    key: Key | None = None,
) -> tuple[Inexact[Array, ""], PyTree]:
    r"""The eigenvalue of largest modulus of a matrix, and its eigenvector.

    It repeats $v \leftarrow A v / \|A v\|_2$ until
    $\|A v - \lambda v\|_2 < \epsilon\, |\lambda|$ for
    $\lambda = \langle v, A v \rangle$, or until the maximum number of iterations. It
    converges if $A$ can be diagonalized and one eigenvalue has a larger modulus than
    all others.

    !!! example

        ```python
        # The sharpness of a loss: the largest eigenvalue of its Hessian.
        params, static = eqx.partition(model, eqx.is_inexact_array)
        grad = jax.grad(lambda params: loss_fn(eqx.combine(params, static)))
        hvp = lambda v: jax.jvp(grad, (params,), (v,))[1]
        sharpness, _ = eqopt.linear_algebra.power_iteration(hvp, v0=params)
        ```

    **Arguments:**

    - `matrix`: $A$, a square matrix of floating-point or complex dtype, or the function
        $v \mapsto A v$ of trees.
    - `v0`: the start: a vector, or a tree that `matrix` accepts and returns; leaves
        other than inexact arrays become `None`. It is required if `matrix` is a
        function, and must be complex if the function returns complex arrays. Defaults
        to numbers drawn uniformly from $[-1, 1)$.
    - `num_iters`: the largest number of iterations, an integer or a 0-d integer array.
        Defaults to 100.
    - `error_tolerance`: $\epsilon \ge 0$. Defaults to 1e-6.
    - `precision`: the precision of products with a matrix on accelerators. Defaults to
        the highest.
    - `key`: a seed or a key for `v0`. Defaults to 0.

    **Returns:**

    $\lambda$, in at least float32, and the eigenvector, of length 1, in the dtypes of
    `v0` (without `v0`, of `matrix`), but complex if the matrix is. If $A v = 0$, for
    example for a zero matrix, these are 0 and $v$. The iteration has only a
    forward-mode derivative.

    **Raises:**

    A `ValueError` or `TypeError` if `matrix` is not square or of integers, if `v0` does
    not fit or is missing, or if `error_tolerance` is negative.

    ??? cite "Reference"

        ```bibtex
        @article{mises1929praktische,
            author = {von Mises, Richard and Pollaczek-Geiringer, Hilda},
            title = {Praktische Verfahren der Gleichungsaufl{\"o}sung},
            journal = {Zeitschrift f{\"u}r Angewandte Mathematik und Mechanik},
            volume = {9},
            pages = {152--164},
            year = {1929},
        }
        ```
    """
    check_number_in("power_iteration", "error_tolerance", error_tolerance)
    tolerance = jnp.asarray(error_tolerance, jnp.float32)
    if callable(matrix):
        if not jtu.tree_leaves(parameters(v0)):
            raise InputError(
                "power_iteration",
                "`v0` must have the arrays to start from if `matrix` is a function, but "
                f"is {v0!r}.",
            )
        start = map_parameters(jnp.asarray, v0)
        return _iterate(_checked(matrix, start), start, num_iters, tolerance)
    check_square("power_iteration", "matrix", matrix)
    matrix = jnp.asarray(matrix)
    if v0 is None:
        v0 = _random(matrix, 0 if key is None else key)
    n = len(matrix)
    check_array(
        "power_iteration",
        "v0",
        v0,
        f"array of shape ({n},)",
        lambda shape: shape == (n,),
    )
    return _of_matrix(matrix, jnp.asarray(v0), num_iters, tolerance, precision)


@functools.partial(jax.jit, static_argnames="precision")
def _of_matrix(matrix, start, num_iters, tolerance, precision):
    dtype = wide_dtype(matrix.dtype, start.dtype)
    wide = matrix.astype(dtype)
    product = lambda v: jnp.matmul(wide, v, precision=precision)
    value, vector = _iterate(product, start.astype(dtype), num_iters, tolerance)
    dtypes = [start.dtype, jnp.complex64] if jnp.iscomplexobj(matrix) else [start.dtype]
    return value, vector.astype(common_dtype(*dtypes))


def _random(matrix, key):
    key = as_key(key)
    real = jnp.finfo(wide_dtype(matrix.dtype)).dtype
    draw = lambda key: jr.uniform(key, matrix.shape[:1], real, -1, 1)
    if not jnp.iscomplexobj(matrix):
        return draw(key).astype(matrix.dtype)
    return lax.complex(*map(draw, jr.split(key))).astype(matrix.dtype)


def _checked(product: Callable, start: PyTree) -> Callable:
    """`product` of a tree in the wide dtypes; raises if the structure changes."""

    def checked(v):
        narrow = jtu.tree_map(lambda x, y: x.astype(y.dtype), v, start)
        out = parameters(product(narrow))
        shapes = lambda tree: jtu.tree_map(jnp.shape, tree)
        if shapes(out) != shapes(v):
            problem = disagreement("matrix(v0)", out, "v0", v)
            raise InputError("power_iteration", problem)
        return jtu.tree_map_with_path(_in_dtype_of, out, v)

    return checked


def _in_dtype_of(path: Any, x: Array, like: Array) -> Array:
    if jnp.iscomplexobj(x) and not jnp.iscomplexobj(like):
        raise InputError(
            "power_iteration",
            f"`v0` must be complex at `{jtu.keystr(path) or '(the root)'}`, because "
            f"`matrix(v0)` has dtype {x.dtype} there.",
        )
    return x.astype(like.dtype)


def _iterate(product, start, num_iters, tolerance):
    wide = lambda x: jnp.asarray(x, wide_dtype(x.dtype))
    v = _normalized(jtu.tree_map(wide, start))
    state = v, product(v), 0

    def is_going_on(state):
        v, image, count = state
        value = _dot(v, image)
        rest = _length(jtu.tree_map(lambda x, y: y - _like(value, x) * x, v, image))
        bound = tolerance.astype(rest.dtype) * jnp.abs(value).astype(rest.dtype)
        # For the eigenvalue zero, the relative error is never small.
        is_done = (rest < bound) | (_length(image) == 0)
        return (count == 0) | (~is_done & (count < num_iters))

    def step(state):
        v, image, count = state
        v = _normalized(image, otherwise=v)
        return v, product(v), count + 1

    v, image, _ = lax.while_loop(is_going_on, step, state)
    vector = _normalized(image, otherwise=v)
    narrow = jtu.tree_map(lambda x, y: x.astype(y.dtype), vector, start)
    return _dot(v, image), narrow


def _normalized(tree, otherwise=None):
    """`tree` with length 1. If its length is 0, this is `otherwise`, or unchanged."""
    tree = _divided(tree, largest(jtu.tree_leaves(tree)))
    length = norm(tree)
    unit = _divided(tree, jnp.where(length == 0, 1, length))
    if otherwise is None:
        return unit
    return jtu.tree_map(lambda x, y: jnp.where(length == 0, y, x), unit, otherwise)


def _length(tree):
    """The 2-norm. The squares neither overflow nor all underflow."""
    unit = largest(jtu.tree_leaves(tree))
    length = norm(_divided(tree, unit))
    return unit.astype(length.dtype) * length


def _like(value, x):
    """`value` in the dtype of `x`. It is real for a real part of a complex tree."""
    return (value if jnp.iscomplexobj(x) else value.real).astype(x.dtype)


def _divided(tree, number):
    return jtu.tree_map(lambda x: x / number.astype(x.dtype), tree)


def _dot(x, y):
    parts = [
        jnp.sum(jnp.conj(a) * b)
        for a, b in zip(jtu.tree_leaves(x), jtu.tree_leaves(y), strict=True)
    ]
    dtype = common_dtype(*(part.dtype for part in parts))
    return jnp.sum(jnp.stack([part.astype(dtype) for part in parts]))
