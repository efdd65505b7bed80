"""`micro_vmap` against Optax and `eqx.filter_vmap`."""

import functools as ft

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from hypothesis import given, settings, strategies as st

from eqopt.microbatching import AccumulationType, micro_vmap

from ..interpreter import interpreted


KINDS = {kind.name: kind for kind in AccumulationType}
REDUCTIONS = {
    "SUM": jnp.sum,
    "MEAN": jnp.mean,
    "RUNNING_MEAN": jnp.mean,
    "CONCAT": lambda x, axis: x,
}
DTYPES = [jnp.float32, jnp.bfloat16, jnp.float16, jnp.int32, jnp.int8, jnp.bool_]


@settings(max_examples=15, deadline=None)
@given(
    rows=st.integers(1, 6),
    size=st.none() | st.integers(1, 6),
    axis=st.integers(-2, 1),
    dtype=st.sampled_from(DTYPES),
)
@pytest.mark.slow
def test_agrees_with_vmap(rows, size, axis, dtype):
    size = None if size is None else min(size, rows)
    x = jnp.arange(2 * rows).reshape((rows, 2) if axis % 2 == 0 else (2, rows))
    x = (x % 5).astype(dtype)

    def fun(x):
        return dict.fromkeys(KINDS, (x, x[0]))

    @interpreted
    def both(x):
        expected = jax.vmap(fun, axis)(x)
        for name, reduction in REDUCTIONS.items():
            expected[name] = tuple(reduction(y, axis=0) for y in expected[name])
        micro = micro_vmap(fun, axis, microbatch_size=size, accumulator=KINDS)
        return micro(x), expected

    actual, expected = both(x)
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        tol = 1e-6 if a.dtype == jnp.float32 else 1e-2
        a, b = (np.asarray(y, np.float64) for y in (a, b))
        np.testing.assert_allclose(a, b, rtol=tol)


@pytest.mark.parametrize("size", [None, 2, 6])
@pytest.mark.costly
def test_parity_with_optax(size, getkey):
    x, y = jr.normal(getkey(), (2, 4, 6))
    scale = jr.normal(getkey(), (4,))

    def fun(scale, x, y):
        return {name: (x * scale, jnp.sum(y)) for name in KINDS}

    theirs = optax.microbatching
    arguments = {"in_axes": (None, 1, 1), "microbatch_size": size}
    ours = micro_vmap(fun, accumulator=KINDS, **arguments)
    accumulator = {name: theirs.AccumulationType[name] for name in KINDS}
    reference = theirs.micro_vmap(fun, accumulator=accumulator, **arguments)
    both = interpreted(lambda *args: (ours(*args), reference(*args)))
    actual, expected = map(jax.tree.leaves, both(scale, x, y))
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_keyword_arguments_are_mapped():
    x, y = jnp.arange(20.0).reshape(5, 4), jnp.arange(5)
    fun = micro_vmap(lambda x, *, y, f: f(x[y % 4]), microbatch_size=2)
    np.testing.assert_array_equal(fun(x, y=y, f=jnp.square), x[y, y % 4] ** 2)


@pytest.mark.slow
def test_models(getkey):
    mlp = eqx.nn.MLP(3, 2, 4, 1, key=getkey())
    x = jr.normal(getkey(), (5, 3))
    fun = eqx.filter_jit(
        micro_vmap(lambda m, x: (m(x), m.activation), (None, 0), microbatch_size=2)
    )
    y, activation = fun(mlp, x)
    np.testing.assert_allclose(y, jax.vmap(mlp)(x), rtol=1e-6, atol=1e-6)
    assert activation is mlp.activation
    # A mapped model is an ensemble, as with `eqx.filter_vmap`.
    keys = jr.split(getkey(), 5)

    def make(key):
        return eqx.nn.PReLU(0.25), eqx.nn.Linear(3, 2, key=key)

    ensemble = interpreted(micro_vmap(make, microbatch_size=2))(keys)
    expected = interpreted(eqx.filter_vmap(make))(keys)
    assert jax.tree.structure(ensemble) == jax.tree.structure(expected)
    np.testing.assert_allclose(ensemble[1].weight, expected[1].weight, rtol=1e-6)
    fun = interpreted(micro_vmap(lambda m, x: m[0](m[1](x)), microbatch_size=3))
    y = interpreted(eqx.filter_vmap(lambda m, x: m[0](m[1](x))))(expected, x)
    np.testing.assert_allclose(fun(ensemble, x), y, rtol=1e-6)


@pytest.mark.parametrize(
    "vmap_fn",
    [eqx.filter_vmap, ft.partial(jax.vmap, axis_name="examples")],
    ids=["filter_vmap", "axis_name"],
)
def test_vmap_fn(vmap_fn, getkey):
    x = jr.normal(getkey(), (3, 4))

    def fun(x, label):
        return (x.sum(), label)

    actual, label = micro_vmap(fun, (-1, 0), vmap_fn=vmap_fn, microbatch_size=2)(
        x, "label"
    )
    np.testing.assert_allclose(actual, x.sum(0), rtol=1e-6)
    assert label == "label"


def test_collectives_see_a_microbatch():
    vmap_fn = ft.partial(jax.vmap, axis_name="i")
    fun = micro_vmap(lambda x: jax.lax.psum(x, "i"), vmap_fn=vmap_fn, microbatch_size=2)
    assert fun(jnp.arange(4)).tolist() == [2, 4, 2, 4]


# Two of three microbatches of `ones(7)`.
EARLY = {"SUM": 6, "MEAN": 6 / 7, "RUNNING_MEAN": 1, "CONCAT": [1] * 6 + [0]}


def test_num_real_microbatches():
    @eqx.filter_jit
    def fun(x, k):
        return micro_vmap(
            lambda x: dict.fromkeys(EARLY, x),
            microbatch_size=3,
            accumulator={name: KINDS[name] for name in EARLY},
            num_real_microbatches=k,
        )(x)

    for k in (2, jnp.array(2)):
        out = fun(jnp.ones(7), k)
        for name, expected in EARLY.items():
            np.testing.assert_allclose(out[name], expected, rtol=1e-6)


def test_float16_sums_do_not_depend_on_the_microbatch_size():
    x = jnp.full(4096, 0.1, jnp.bfloat16)
    out = {
        size: micro_vmap(
            lambda x: x, microbatch_size=size, accumulator=AccumulationType.SUM
        )(x).item()
        for size in (None, 1, 64)
    }
    assert set(out.values()) == {jnp.sum(x).item()}
