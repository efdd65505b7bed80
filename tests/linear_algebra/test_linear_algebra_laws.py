"""What holds for every function of the room."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqopt.linear_algebra import matrix_inverse_pth_root, nnls, power_iteration


A = np.array([[2.0, 0.5, 0.0], [0.5, 1.5, -0.3], [0.0, -0.3, 1.0]])
B = np.array([0.5, -1.0, 2.0])
CALLS = {
    "power_iteration": lambda a, b, n: power_iteration(a, error_tolerance=1e-4 * n),
    "power_iteration from v0": lambda a, b, n: power_iteration(
        a, v0=b, error_tolerance=1e-4 * n
    ),
    "power_iteration of a function": lambda a, b, n: power_iteration(
        lambda v: [2 * v[0]], v0=[b], error_tolerance=1e-4 * n
    ),
    "matrix_inverse_pth_root": lambda a, b, n: matrix_inverse_pth_root(
        a, 3, ridge_epsilon=1e-6 * n, error_tolerance=1e-6 * n
    ),
    "nnls": lambda a, b, n: nnls(a, b, 5),
    "nnls with L": lambda a, b, n: nnls(a, b, 5, L=10.0 * n),
}
calls = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


@calls
@pytest.mark.costly
def test_numpy_arrays_in_float64(call):
    """Without x64, these are float32, and JAX does not warn about it."""
    found = jax.tree.leaves(call(A, B, np.float64(1.0)))
    narrow = (jnp.asarray(x, jnp.float32) for x in (A, B))
    for x, expected in zip(found, jax.tree.leaves(call(*narrow, 1.0)), strict=True):
        assert x.dtype == jnp.float32
        np.testing.assert_allclose(x, expected, rtol=1e-5, atol=1e-6)


@calls
def test_products_are_precise(call):
    """At the highest precision: accelerators would round factors to 8 or 11 bits."""
    program = jax.jit(lambda a, b: call(a, b, 1.0)).lower(A, B).as_text()
    products = [x for x in program.splitlines() if "stablehlo.dot_general" in x]
    assert all("precision = [HIGHEST" in x for x in products)


@calls
def test_constants_of_a_trace(call):
    """Numbers that are arrays with values are checked, although JAX is tracing."""
    number = jnp.asarray(1.0)
    jax.eval_shape(lambda a, b: call(a, b, number), *map(jnp.asarray, (A, B)))


@calls
@pytest.mark.costly
def test_vmap(call):
    stack = jnp.stack([A, 2 * A]).astype(jnp.float32), jnp.stack([B, -B])
    mapped = jax.jit(jax.vmap(lambda a, b: call(a, b, 1.0)))(*stack)
    for i in range(2):
        expected = call(stack[0][i], stack[1][i], 1.0)
        for x, y in zip(*map(jax.tree.leaves, (mapped, expected)), strict=True):
            np.testing.assert_allclose(x[i], y, rtol=1e-4, atol=1e-5)
