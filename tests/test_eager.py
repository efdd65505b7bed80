"""Outside `jit`, small programs in NumPy give the bits of compiled ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from . import eager
from .laws.subjects import avals


NAN, INF = np.nan, np.inf


def of_any(x, y):
    return x + y, x * y, x - y, -x, x == y, x != y, jnp.where(x == y, x, y)


def of_floats(x, y):
    ordered = [x < y, x <= y, x > y, x >= y, jnp.maximum(x, y), jnp.minimum(x, y)]
    parts = [abs(x), jnp.sign(x), jnp.square(x), x / y, jnp.sqrt(x), x % y]
    return of_any(x, y), ordered, parts, jnp.isfinite(x), jnp.exp(x), x**y, x**3


def of_complex(x, y):
    return of_any(x, y), x / y, abs(x), jnp.sqrt(x), x.real, x.imag, x.conj()


def of_integers(x, y):
    shifted = x << 1, x >> 1, lax.shift_right_logical(x, jnp.full_like(x, 40))
    return of_any(x, y), shifted, x & y, x | y, x ^ y, ~x, x // (y + 1), x % (y + 1)


def of_shapes(x):
    yield from (x.T, x.reshape(3, -1), x[1:, ::2], x[:, 0], jnp.stack([x, x], 1))
    yield from (*jnp.unstack(x), *jnp.split(x, [1], 1), jnp.concatenate([x, x], 1))
    yield from (jnp.broadcast_to(x, (3, 2, 3)), x @ x.T, x[::-1])
    yield lax.reshape(x, (6,), (1, 0))
    yield lax.dynamic_slice(x, (1, 5), (1, 2)), lax.dynamic_slice(x, (-1, 0), (1, 2))
    for padding in ([(1, 2, 0), (0, 1, 2)], [(-1, 0, 0), (0, 0, 1)], [(0, 0, 0)] * 2):
        yield lax.pad(x, jnp.float32(7), padding)


def moved(x):
    yield from of_shapes(x)
    yield from (
        x[0],
        x[jnp.argmax(x[:, 0])],
        x[::-1],
        x.at[0].set(2),
        jnp.zeros((3, 4)),
    )
    yield from (jnp.arange(5), jnp.arange(1.0, 2, 0.5), jnp.eye(2), jnp.full_like(x, 3))
    yield from (x.astype(jnp.bfloat16), x.astype(int), jnp.asarray(2.0) * 3, 1 / x)


FLOATS = [1.5, -2.25, 0.0, -0.0, NAN, INF, -INF, 3e-3, 1e-39, 2e38]
ARGUMENTS = {
    "float32": (of_floats, np.array(FLOATS, np.float32)),
    "bfloat16": (of_floats, np.array(FLOATS, jnp.bfloat16)),
    "complex": (of_complex, np.array([1.5 - 1j, 2j, 0.0, -3.0], np.complex64)),
    "integers": (of_integers, np.array([0, 1, 7, 2**31 - 1])),
    "moved": (moved, np.arange(6, dtype=np.float32).reshape(2, 3)),
}


@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.costly
def test_same_bits(name):
    function, x = ARGUMENTS[name]
    args = [jnp.asarray(x)] * (1 if name == "moved" else 2)
    found = jax.tree.leaves([*function(*args)])
    with eager.compiled():
        expected = jax.tree.leaves([*function(*args)])
    assert avals(found) == avals(expected)
    for a, b in zip(found, expected, strict=True):
        assert not a.committed
        assert a.unsafe_buffer_pointer() != args[0].unsafe_buffer_pointer()
        a, b = np.asarray(a, np.complex128), np.asarray(b, np.complex128)
        np.testing.assert_array_equal(a, b)
        signs = [np.signbit(np.where(np.isnan(x), 1, x.real)) for x in (a, b)]
        np.testing.assert_array_equal(*signs)


def test_what_has_its_place(compilations):
    x = np.ones((1, 7, 5), np.float32)
    there = jax.device_put(x, jax.devices()[1])
    assert (there + there).devices() == {jax.devices()[1]}
    given = jax.device_put(x)
    jax.jit(lambda x: -x, donate_argnums=0)(given)
    assert given.is_deleted()
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        jnp.divide(0 * x, 0 * x)
    assert len(compilations) >= 3
