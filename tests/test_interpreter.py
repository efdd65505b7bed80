"""What the interpreter of the tests comes to is what a compiled program comes to."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax import lax

from .interpreter import interpreted, on_an_accelerator
from .laws.subjects import assert_close, avals


def check(function, *args):
    found, expected = interpreted(function)(*args), eqx.filter_jit(function)(*args)
    assert avals(found) == avals(expected)
    assert_close(found, expected, 1e-6, 1e-6)


def test_conversions():
    x = jnp.asarray([1.75, -1.75, 0.0, 1e10, np.nan])
    dtypes = "float16", "bfloat16", "int32", "uint32", "bool", "complex64"
    converted = lambda x: [lax.convert_element_type(x, jnp.dtype(d)) for d in dtypes]
    check(converted, x)
    check(converted, x[:3])


def of_reductions(x):
    axes = None, *range(x.ndim)
    yield from (x.sum(axis) for axis in axes)
    yield from ((x > 0).any(axis) for axis in axes)
    yield from ((x > 0).all(axis) for axis in axes)
    yield from (x.max(axis, initial=0.0) for axis in axes)
    yield from (x.min(axis, initial=0.0) for axis in axes)


@pytest.mark.parametrize("shape", [(2, 3), (0, 3), ()])
@pytest.mark.costly
def test_reductions(shape):
    check(lambda x: [*of_reductions(x)], jnp.ones(shape))


@jax.custom_jvp
def half(x):
    return x / 2


half.defjvp(lambda x, t: (half(*x), 3 * t[0]))


@jax.custom_vjp
def twice(x):
    return 2 * x


twice.defvjp(lambda x: (2 * x, x), lambda x, g: (g * x,))


def grow(carry, y):
    return carry * y, {"sum": carry + y}


@jax.custom_batching.custom_vmap
def with_own_rule(x):
    return 2 * x


@with_own_rule.def_vmap
def _(size, is_mapped, x):
    return 2 * x, is_mapped[0]


def of_programs(x, flag):
    yield lax.cond(flag, lambda: x, lambda: x + 1)
    yield lax.switch(jnp.asarray(7), [lambda: x, lambda: 2 * x])
    yield jax.vmap(lambda x: lax.cond(x > 1, jnp.sin, jnp.cos, x))(x)
    yield lax.while_loop(lambda x: x.sum() < 100, lambda x: 2 * x, x)
    yield jax.vmap(lambda x: lax.while_loop(lambda x: x < 9, lambda x: 2 * x, x))(x)
    yield lax.fori_loop(0, 3, lambda i, x: x * i, x)
    yield lax.fori_loop(0, x[0].astype(int), lambda i, x: x * i, x)
    yield jax.jit(twice)(x), jax.grad(lambda x: twice(x).sum())(x)
    yield jax.grad(lambda x: half(x).sum())(x)
    yield jax.grad(jax.checkpoint(lambda x: jnp.sin(half(x)).sum()))(x)
    yield lax.optimization_barrier([x, flag]), lax.stop_gradient(x), x.copy()
    yield jnp.argsort(x), jnp.median(x), jnp.ldexp(x, jnp.arange(3))
    yield [getattr(x.at[0], name)(2.0) for name in ("set", "max", "min", "multiply")]
    yield x.at[0].add(2.0), x.at[0].subtract(2.0), jnp.copy(x), x.T.copy()
    yield lax.reduce(x, jnp.float32(0), lambda x, y: x + 2 * y, (0,))
    yield jnp.linalg.solve(jnp.diag(x), x)
    yield with_own_rule(x)


def of_scans(x):
    yield lax.scan(grow, x, x)
    yield lax.scan(grow, x, x, reverse=True)
    yield lax.scan(lambda carry, _: (carry, x[0] * 2), (), None, length=3)
    yield lax.scan(lambda c, y: (c + y[0] * x + y[1], None), 0 * x, (x, x))
    yield lax.map(jnp.sin, x)
    scanned = lambda x: lax.scan(lambda c, y: (c * y + x, jnp.cos(c)), x, x)
    yield jax.jvp(scanned, (x,), (x,)), jax.vmap(scanned)(jnp.stack([x, x]))
    yield jax.grad(lambda x: scanned(x)[1].sum())(x)
    yield jax.grad(lambda x: lax.scan(jax.checkpoint(grow), x, x)[0].sum())(x)


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.slow
def test_programs_within_programs(flag):
    check(lambda x, f: [*of_programs(x, f)], jnp.arange(1.0, 4.0), jnp.asarray(flag))


def test_scans():
    check(lambda x: [*of_scans(x)], jnp.arange(1.0, 4.0))


@pytest.mark.slow
def test_scans_over_random_keys():
    def program(key):
        step = lambda key, x: (jr.split(key)[0], (key, jr.normal(x)))
        return jax.tree.map(as_numbers, lax.scan(step, key, jr.split(key, 3)))

    check(program, jr.key(0))


def as_numbers(x):
    return jr.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x


def on_platforms(x):
    """One function on a CPU and another one elsewhere, also within one another."""
    choice = lambda x: lax.platform_dependent(x, cpu=jnp.sin, default=jnp.cos)
    inner = lambda x: lax.platform_dependent(x, cuda=jnp.tan, default=choice)
    outer = lambda x: lax.platform_dependent(x, cpu=inner, default=lambda x: 2 * x)
    both = lambda x: lax.platform_dependent(x, cpu=choice, default=inner)
    for f in (choice, inner, outer, both):
        yield f(x), jax.vmap(f)(x), jax.jvp(f, (x,), (x,)), jax.linearize(f, x)[1](x)
        yield jax.vmap(jax.grad(f))(x), jax.jit(f)(x)


@pytest.mark.slow
def test_platforms():
    x = jnp.arange(1.0, 4.0)
    program = lambda x: [*on_platforms(x)]
    check(program, x)
    with on_an_accelerator():
        found = interpreted(program)(x)

    def elsewhere(x):
        for f in (jnp.cos, jnp.cos, lambda x: 2 * x, jnp.cos):
            yield f(x), f(x), jax.jvp(f, (x,), (x,)), jax.jvp(f, (x,), (x,))[1]
            yield jax.vmap(jax.grad(f))(x), f(x)

    assert_close(found, [*elsewhere(x)], 1e-6, 1e-6)
    one_each = lambda x: lax.platform_dependent(x, cpu=jnp.sin, cuda=jnp.cos)
    with on_an_accelerator():
        assert_close(interpreted(one_each)(x), jnp.cos(x), 1e-6, 1e-6)
    of_three = lambda x: lax.platform_dependent(
        x, cuda=jnp.sin, cpu=jnp.cos, default=jnp.tan
    )
    for platform, expected in (("cuda", jnp.sin), ("tpu", jnp.tan)):
        with on_an_accelerator(platform):
            assert_close(interpreted(of_three)(x), expected(x), 1e-6, 1e-6)
