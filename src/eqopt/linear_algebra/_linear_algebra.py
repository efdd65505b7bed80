"""Eigenvalues, roots of matrices and least squares, by iterations that compile well."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Inexact

from .._arguments.checks import check_integer, check_number_in
from .._errors import InputError
from .._trees.keys import as_key
from .._trees.leaves import disagreement, map_parameters, parameters
from .._types import IntegerLike, Interval, Key, PyTree, RealScalarLike
from ..numerics._numerics import common_dtype, wide_dtype
from ..tree._reductions import largest, norm


def power_iteration(
    matrix: Inexact[Array | np.ndarray, "n n"] | Callable[[PyTree], PyTree],
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
    check_number_in("error_tolerance", error_tolerance)
    tolerance = jnp.asarray(error_tolerance, jnp.float32)
    if v0 is None and not callable(matrix):
        v0 = _random(jnp.asarray(matrix), 0 if key is None else key)
    start = map_parameters(jnp.asarray, v0)
    if not jtu.tree_leaves(start):
        problem = f"`v0` must have floating-point or complex arrays, but is {v0!r}."
        raise InputError(problem)
    if callable(matrix):
        return _iterate(_checked(matrix, start), start, num_iters, tolerance)
    return _of_matrix(jnp.asarray(matrix), start, num_iters, tolerance, precision)


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
            raise InputError(disagreement("matrix(v0)", out, "v0", v))
        return jtu.tree_map_with_path(_in_dtype_of, out, v)

    return checked


def _in_dtype_of(path: Any, x: Array, like: Array) -> Array:
    if jnp.iscomplexobj(x) and not jnp.iscomplexobj(like):
        why = f"because `matrix(v0)` has dtype {x.dtype} there"
        raise InputError(
            f"`v0` must be complex at `{jtu.keystr(path) or '(the root)'}`, {why}."
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
    pairs = zip(jtu.tree_leaves(x), jtu.tree_leaves(y), strict=True)
    parts = [jnp.sum(jnp.conj(a) * b) for a, b in pairs]
    dtype = common_dtype(*(part.dtype for part in parts))
    return jnp.sum(jnp.stack([part.astype(dtype) for part in parts]))


def matrix_inverse_pth_root(
    matrix: Float[Array | np.ndarray, "n n"],
    p: int,
    num_iters: IntegerLike = 100,
    ridge_epsilon: RealScalarLike = 1e-6,
    error_tolerance: RealScalarLike = 1e-6,
    precision: lax.Precision = lax.Precision.HIGHEST,
) -> tuple[Float[Array, "n n"], Float[Array, ""]]:
    r"""$(A + \epsilon \lambda I)^{-1/p}$ by a coupled Newton iteration.

    $\lambda$ is the largest eigenvalue of $A$, at least 1e-16. With
    $B = (A + \epsilon \lambda I) / \lambda$ and $z = \frac{1 + p}{2 \|B\|_F}$, it
    starts with $M = z B$, $X = z^{1/p} I$ and repeats

    $$T = \tfrac{1}{p} \bigl((p + 1) I - M\bigr), \quad
        M \leftarrow T^p M, \quad X \leftarrow X T,$$

    until $\max |M - I|$ is small, or $\|M - I\|_F$ grows by rounding. Then
    $X \approx B^{-1/p}$.

    **Arguments:**

    - `matrix`: $A$, symmetric and positive semi-definite, of floating dtype.
    - `p`: a Python integer of at least 1.
    - `num_iters`: the largest number of iterations, an integer or a 0-d integer array.
        Defaults to 100.
    - `ridge_epsilon`: $\epsilon \ge 0$. Defaults to 1e-6. It must be positive for a
        finite root of a singular matrix.
    - `error_tolerance`: the iteration ends if $\max |M - I|$ is below this. Defaults to
        1e-6.
    - `precision`: the precision of the products on accelerators. Defaults to the
        highest.

    **Returns:**

    The root, in the dtype of `matrix`, and its error $\max |M - I|$, in at least
    float32, in which everything is computed. The root of a zero matrix is
    $(10^{-16} \epsilon)^{-1/p} I$. The iteration has only a forward-mode derivative.

    **Raises:**

    A `ValueError` or `TypeError` if `matrix` is not square or not real and floating, if
    `p` is not a positive Python integer, or if `ridge_epsilon` or `error_tolerance` is
    negative.

    ??? cite "Reference"

        Equation 7.18 in

        ```bibtex
        @book{higham2008functions,
            author = {Higham, Nicholas J.},
            title = {Functions of Matrices: Theory and Computation},
            publisher = {SIAM},
            year = {2008},
            doi = {10.1137/1.9780898717778},
        }
        ```
    """
    p = check_integer("p", p, 1)
    check_number_in("ridge_epsilon", ridge_epsilon)
    check_number_in("error_tolerance", error_tolerance)
    matrix = jnp.asarray(matrix)
    dtype = wide_dtype(matrix.dtype)
    numbers = (jnp.asarray(x, dtype) for x in (ridge_epsilon, error_tolerance))
    root, error = _inverse_root(matrix.astype(dtype), p, num_iters, *numbers, precision)
    return root.astype(matrix.dtype), error


class _Iterate(NamedTuple):
    m: Float[Array, "n n"]
    x: Float[Array, "n n"]
    errors: tuple[Float[Array, ""], Float[Array, ""]]


@functools.partial(jax.jit, static_argnames=("p", "precision"))
def _inverse_root(a, p, num_iters, ridge, tolerance, precision):
    identity = jnp.eye(len(a), dtype=a.dtype)
    matmul = functools.partial(jnp.matmul, precision=precision)
    top, _ = power_iteration(a, precision=precision)
    # Divided by the largest eigenvalue first, so that norms of a small matrix do not
    # underflow.
    top = jnp.maximum(top, 1e-16)
    b = a / top + ridge * identity
    z = (1 + p) / (2 * jnp.linalg.norm(b))

    def errors(m):
        rest = m - identity
        # The second error, of eigenvalues, grows only by rounding. The first one, of
        # elements, also grows while more and more eigenvalues approach 1.
        return jnp.max(jnp.abs(rest)), jnp.linalg.norm(rest)

    def is_growing(now, before):
        return ~(now.errors[1] < 1.2 * before.errors[1])  # or NaN

    def is_going_on(state):
        now, before, count = state
        is_done = (now.errors[0] <= tolerance) | is_growing(now, before)
        return ~is_done & (count < num_iters)

    def step(state):
        now, _, count = state
        t = ((1 + p) * identity - now.m) / p
        m = matmul(_power(t, p, matmul), now.m)
        return _Iterate(m, matmul(now.x, t), errors(m)), now, count + 1

    start = _Iterate(z * b, z ** (1 / p) * identity, errors(z * b))
    infinity = jnp.full_like(top, jnp.inf)
    state = start, start._replace(errors=(infinity, infinity)), 0
    now, before, _ = lax.while_loop(is_going_on, step, state)
    choose = functools.partial(jnp.where, is_growing(now, before))
    root = choose(before.x, now.x) * top ** (-1 / p)
    return root, choose(before.errors[0], now.errors[0])


def _power(t, p, matmul):
    """$T^p$ by repeated squaring."""
    if p == 1:
        return t
    half = _power(t, p // 2, matmul)
    square = matmul(half, half)
    return matmul(square, t) if p % 2 else square


#
# Least squares with non-negative unknowns
#


def nnls(
    A: Float[Array | np.ndarray, "m n"],
    b: Float[Array | np.ndarray, "m *columns"],
    iters: int,
    unroll: int | bool = 1,
    L: RealScalarLike | None = None,
) -> Float[Array, "n *columns"]:
    r"""Minimizes $\|A x - b\|_2$ over $x \ge 0$ by the fast projected gradient method.

    With $Q = A^\top A$, $q = A^\top b$, from $x = y = 0$ and $t = 1$ it repeats

    $$x' = \max\bigl(y - (Q y - q) / L, 0\bigr), \quad
        t' = \tfrac{1}{2} \bigl(1 + \sqrt{1 + 4 t^2}\bigr), \quad
        y = x' + \frac{t - 1}{t'} (x' - x).$$

    **Arguments:**

    - `A`: a real matrix of floating dtype.
    - `b`: a vector with a number for each row of `A`, or a matrix of such columns, each
        of which is a separate problem.
    - `iters`: the number of iterations, a Python integer of at least 0.
    - `unroll`: the number of iterations in a step of the compiled loop, as in
        `jax.lax.scan`. Defaults to 1.
    - `L`: an upper bound on the largest eigenvalue of $Q$, a positive number or a 0-d
        array. Defaults to the smaller of $\|Q\|_F$ and $\|Q\|_1$. A tighter bound makes
        it faster.

    **Returns:**

    $x$, in the dtype of `b`, computed in at least float32.

    **Raises:**

    A `ValueError` or `TypeError` if shapes do not fit, if something is not real and
    floating, if `iters` is not a Python integer, or if `L` is not positive.

    ??? cite "Reference"

        ```bibtex
        @incollection{polyak2015projected,
            author = {Polyak, Roman A.},
            title = {Projected Gradient Method for Non-Negative Least Square},
            booktitle = {Infinite Products of Operators and Their Applications},
            series = {Contemporary Mathematics},
            volume = {636},
            publisher = {American Mathematical Society},
            year = {2015},
        }
        ```
    """
    iters = check_integer("iters", iters, 0)
    matrix, columns = jnp.asarray(A), jnp.asarray(b)
    dtype = wide_dtype(matrix.dtype, columns.dtype)
    if L is not None:
        positive = Interval(0, includes_low=False, includes_high=False)
        check_number_in("L", L, positive)
    given = None if L is None else jnp.asarray(L, dtype)
    x = _nnls(matrix.astype(dtype), columns.astype(dtype), given, iters, unroll)
    return x.astype(columns.dtype)


@functools.partial(jax.jit, static_argnames=("iters", "unroll"))
def _nnls(a, b, bound, iters, unroll):
    # In a unit in which no square overflows, and not all underflow. The iteration does
    # not depend on it.
    unit = largest([a])
    a, b = a / unit, b / unit
    matmul = functools.partial(jnp.matmul, precision=lax.Precision.HIGHEST)
    gram, q = matmul(a.T, a), matmul(a.T, b)
    if bound is not None:
        bound = bound / unit / unit
    else:
        # The limit of the iteration does not depend on it, and neither does the
        # derivative.
        bound = lax.stop_gradient(_spectral_bound(gram))
    bound = jnp.where(bound == 0, 1, bound)

    def step(state, _):
        x, y, t = state
        stepped = y - (matmul(gram, y) - q) / bound
        # NaN stays NaN, and at the bound, the derivative is zero.
        new_x = jnp.where(stepped <= 0, 0, stepped)
        new_t = (1 + jnp.sqrt(1 + 4 * t * t)) / 2
        return (new_x, new_x + (t - 1) / new_t * (new_x - x), new_t), None

    zeros = jnp.zeros_like(q)
    one = jnp.ones((), q.dtype)
    (x, _, _), _ = lax.scan(step, (zeros, zeros, one), length=iters, unroll=unroll)
    return x


def _spectral_bound(gram: Float[Array, "n n"]) -> Float[Array, ""]:
    """An upper bound on the largest eigenvalue of a symmetric matrix."""
    sums = jnp.max(jnp.sum(jnp.abs(gram), 0), initial=0)
    return jnp.minimum(jnp.sqrt(jnp.sum(gram * gram)), sums)
