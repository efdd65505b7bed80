"""What the interpreter of the tests comes to is what a compiled program comes to."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax import lax

from .interpreter import interpreted
from .laws.subjects import assert_close, avals


def check(function, *args):
    found, expected = interpreted(function)(*args), eqx.filter_jit(function)(*args)
    assert avals(found) == avals(expected)
    assert_close(found, expected, 1e-6, 1e-6)


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


NAN, INF = np.nan, np.inf


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16, jnp.bfloat16])
def test_floats(dtype):
    x = jnp.asarray([1.5, -2.25, 0.0, -0.0, NAN, INF, -INF, 3e-3], dtype)
    check(of_floats, x, x[::-1])


def test_complex_numbers():
    x = jnp.asarray([1.5 - 1j, 2j, 0.0, -3.0])
    check(of_complex, x, x[::-1] + 1)


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.uint32])
def test_integers(dtype):
    x = jnp.asarray([0, 1, 7, 2**31 - 1], dtype)
    check(of_integers, x, x[::-1])


def test_conversions():
    x = jnp.asarray([1.75, -1.75, 0.0, 1e10, NAN])
    dtypes = "float16", "bfloat16", "int32", "uint32", "bool", "complex64"
    check(lambda x: [lax.convert_element_type(x, jnp.dtype(d)) for d in dtypes], x)


def test_shapes():
    def program(x):
        yield from (x.T, x.reshape(3, -1), x[1:, ::2], x[:, 0], jnp.stack([x, x], 1))
        yield from (*jnp.unstack(x), *jnp.split(x, [1], 1), jnp.concatenate([x, x], 1))
        yield from (jnp.broadcast_to(x, (3, 2, 3)), x @ x.T, x[::-1])
        for padding in (
            [(1, 2, 0), (0, 1, 2)],
            [(-1, 0, 0), (0, 0, 1)],
            [(0, 0, 0)] * 2,
        ):
            yield lax.pad(x, jnp.float32(7), padding)

    check(lambda x: [*program(x)], jnp.arange(6.0).reshape(2, 3))
    check(lambda x: lax.pad(x, 7.0, [(2, 1, 3)]), jnp.ones(0))
    check(lambda x: lax.pad(x, 7.0, []), jnp.ones(()))


@pytest.mark.parametrize("shape", [(2, 3), (0, 3), ()])
def test_sums(shape):
    def program(x):
        axes = None, *range(x.ndim)
        yield from (x.sum(axis) for axis in axes)
        yield from ((x > 0).any(axis) for axis in axes)
        yield from ((x > 0).all(axis) for axis in axes)
        yield from (x.max(axis, initial=0.0) for axis in axes)
        yield from (x.min(axis, initial=0.0) for axis in axes)

    check(lambda x: [*program(x)], jnp.ones(shape))


def test_programs_within_programs():
    @jax.custom_jvp
    def half(x):
        return x / 2

    half.defjvp(lambda x, t: (half(*x), 3 * t[0]))

    def program(x, flag):
        grow = lambda carry, y: (carry * y, {"sum": carry + y})
        yield lax.cond(flag, lambda: x, lambda: x + 1)
        yield lax.switch(jnp.asarray(7), [lambda: x, lambda: 2 * x])
        yield lax.while_loop(lambda x: x.sum() < 100, lambda x: 2 * x, x)
        yield jax.vmap(lambda x: lax.while_loop(lambda x: x < 9, lambda x: 2 * x, x))(x)
        yield lax.scan(grow, x, x)
        yield lax.scan(grow, x, x, reverse=True)
        yield lax.fori_loop(0, 3, lambda i, x: x * i, x)
        yield jax.grad(lambda x: half(x).sum())(x)
        yield jax.grad(jax.checkpoint(lambda x: jnp.sin(half(x)).sum()))(x)
        yield lax.platform_dependent(x, cpu=jnp.sin, default=jnp.cos)

    for flag in (True, False):
        check(lambda x, f: [*program(x, f)], jnp.arange(1.0, 4.0), jnp.asarray(flag))


def test_noise():
    def program(key):
        one, other = jr.split(key)
        return one, jr.normal(other, (3,)), jr.bits(one, (2,)), jr.key(3)

    found, expected = interpreted(program)(jr.key(0)), program(jr.key(0))
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        is_key = jnp.issubdtype(a.dtype, jax.dtypes.prng_key)
        np.testing.assert_array_equal(*map(jr.key_data, (a, b)) if is_key else (a, b))


def test_types_are_those_of_the_trace():
    """Weak ones, too; and what is no array comes out as it is."""
    check(lambda x: (jnp.asarray(2.0), jnp.asarray(3), x, "text", None), jnp.ones(()))


def test_traces_once_for_the_same_arguments():
    calls = []

    @interpreted
    def program(model, x):
        calls.append(x)
        return model(x) if callable(model) else x * model

    for model in (jnp.sin, jnp.sin, jnp.cos, 2.0, 2.0):
        program(model, jnp.ones(2))
    assert len(calls) == 3
    program(2.0, jnp.ones(3))
    program(2.0, jnp.ones(2, jnp.bfloat16))
    program(2.0, jnp.asarray(1.0))
    program(2.0, jnp.ones(()))
    assert len(calls) == 7
