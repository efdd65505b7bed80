"""`microbatch` and `micro_vmap`: against Optax, and which rows go where."""

import functools as ft
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

from eqopt.microbatching import AccumulationType, micro_vmap, microbatch

from .subjects import assert_close


SUM, MEAN = AccumulationType.SUM, AccumulationType.MEAN
RUNNING_MEAN, CONCAT = AccumulationType.RUNNING_MEAN, AccumulationType.CONCAT

KINDS = {kind.name: kind for kind in AccumulationType}


def one_of_each(x):
    """A function of rows along axis 0 for each kind, which splits in that manner."""
    mean = jnp.mean(x, axis=0)
    return {"SUM": jnp.sum(x, 0), "MEAN": mean, "RUNNING_MEAN": mean, "CONCAT": x * x}


def integers(shape, dtype=jnp.float32):
    """Small integers, of which sums are exact in any order."""
    return (jnp.arange(math.prod(shape)) * 7 % 11 - 5).reshape(shape).astype(dtype)


@pytest.mark.parametrize("size", [None, 1, 2, 3, 4])
def test_documented_example(size):
    fun = microbatch(lambda x: (x + 1, jnp.sum(3 * x)), 0, size, (CONCAT, SUM))
    rows, total = fun(jnp.array([1, 2, 3, 4]))
    assert rows.tolist() == [2, 3, 4, 5]
    assert total == 30


@pytest.mark.parametrize(("dtype", "axis"), [(jnp.float32, 0), (jnp.bfloat16, 1)])
@pytest.mark.slow
def test_parity_with_optax(dtype, axis, getkey):
    x, y = jr.normal(getkey(), (2, 6, 6, 3), dtype)

    def fun(scale, x, *, y):
        return one_of_each(jnp.moveaxis(x, axis, 0) * scale), jnp.sum(y, 0)

    theirs = optax.microbatching.AccumulationType
    kinds = {name: theirs[name] for name in KINDS}

    @eqx.filter_jit
    def both(x, y, size):
        rest = {"argnames": "y", "in_axes": (axis, 0)}
        ours = microbatch(fun, 1, size, (KINDS, SUM), **rest)
        reference = optax.microbatch(fun, 1, size, (kinds, theirs.SUM), **rest)
        return ours(2, x, y=y), reference(2, x, y=y)

    for size in (2, 6):
        assert_close(*both(x, y, size), tol=float(jnp.finfo(dtype).eps) * 16)


def test_which_rows_go_together():
    x = jnp.arange(6.0)

    def neighbours(x):
        return x[:-1] @ x[1:]

    assert microbatch(neighbours, 0, 3)(x) == 0 * 2 + 2 * 4 + 1 * 3 + 3 * 5
    # Ragged: columns of the first `n * size` rows, then the others.
    groups = microbatch(lambda x: x[None], 0, 2, CONCAT)(jnp.arange(6))
    assert groups.tolist() == [[0, 3], [1, 4], [2, 5]]
    seen = microbatch(lambda x: jnp.sum(x), 0, 2, CONCAT)(jnp.arange(7))
    assert seen.tolist() == [0 + 3, 1 + 4, 2 + 5, 6]


def test_every_way_to_name_a_batch_argument():
    a = integers((6, 4, 5))
    b = jnp.moveaxis(a, 0, 1)

    def fun(a, b):
        return jnp.einsum("bij,kbj->ik", a, b)

    expected = fun(a, b)
    micro = ft.partial(microbatch, fun, microbatch_size=2)

    @jax.jit
    def in_every_way(a, b):
        return (
            micro(argnums=(0, 1), in_axes=(0, 1))(a, b),
            micro(argnums=(1, 0), in_axes=(1, 0))(a, b),
            micro(argnums=(-1, -2), in_axes=(-2, -3))(a, b),
            micro(argnums=(), argnames=("a", "b"), in_axes=(0, 1))(b=b, a=a),
            micro(argnums=0, argnames="b", in_axes=(0, 1))(a, b),
            micro(argnums=(0, 1), in_axes=(0, 1))(b=b, a=a),
            micro(argnums=(), argnames=("a", "b"), in_axes=(0, 1))(a, b=b),
        )

    for out in in_every_way(a, b):
        np.testing.assert_array_equal(out, expected)


# The result for `ones(8)` in 3 microbatches, of 3, 3 and 2 rows, of which `k` are run.
EARLY = {
    "SUM": [0, 3, 6, 8],
    "MEAN": [0, 3 / 8, 6 / 8, 1],
    "RUNNING_MEAN": [0, 1, 1, 1],
    "CONCAT": [[0] * 8, [1, 0, 1, 0, 1, 0, 0, 0], [1] * 6 + [0, 0], [1] * 8],
}


@pytest.mark.slow
def test_num_real_microbatches():
    @eqx.filter_jit
    def fun(x, k):
        return microbatch(one_of_each, 0, 3, KINDS, num_real_microbatches=k)(x)

    x = jnp.ones(8)
    for k in range(4):
        for out in (fun(x, k), fun(x, jnp.array(k))):
            for name, expected in EARLY.items():
                np.testing.assert_allclose(out[name], expected[k], rtol=1e-6)
    # An array cannot be checked: it is clipped.
    assert_close(fun(x, jnp.array(9)), fun(x, jnp.array(3)))
    assert_close(fun(x, np.int32(-1)), fun(x, jnp.array(0)))


def test_what_is_left_out_may_be_nan():
    x = jnp.array([1.0, jnp.nan, 2.0, jnp.nan, 3.0])  # microbatches 0,2; 1,3; and 4
    for k in (1, jnp.array(1)):
        fun = microbatch(jnp.sum, 0, 2, num_real_microbatches=k)
        assert fun(x) == 3
    concat = microbatch(lambda x: x, 0, 2, CONCAT, num_real_microbatches=1)
    assert concat(x).tolist() == [1, 0, 2, 0, 0]


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_low_precision_is_rounded_once(dtype):
    # In 16 bits, 1 + 1 + ... stops growing at 256 (bfloat16) or 2048 (float16).
    x = jnp.ones(2304, dtype)
    total = microbatch(lambda x: jnp.sum(x), 0, 1)(x)
    assert_close(total, jnp.array(2304, dtype), tol=0)
    mean = microbatch(lambda x: jnp.mean(x), 0, 5, MEAN)(x * 60)
    assert_close(mean, jnp.array(60, dtype), tol=0)


def test_other_outputs_pass_through():
    """From a batch with whatever a data loader may leave in it."""
    batch = {"label": np.arange(10), "name": "digits", "f": jnp.tanh, "none": None}

    def fun(table, batch):
        return {**batch, "n": 3}, table

    micro = eqx.filter_jit(microbatch(fun, 1, 4, CONCAT))
    out, stacked = micro(jnp.arange(4), batch)
    np.testing.assert_array_equal(out.pop("label"), batch.pop("label"))
    assert out == {**batch, "n": 3}
    assert stacked.shape == (3 * 4,)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_constant_outputs(dtype):
    fun = lambda x: (jnp.array(1.5, dtype), jnp.array([1.0, 2.0], dtype), x)
    for size in (None, 2):
        micro = eqx.filter_jit(microbatch(fun, 0, size, (MEAN, MEAN, CONCAT)))
        x = jnp.arange(5.0)
        assert_close(micro(x), fun(x))


@pytest.mark.slow
def test_it_can_be_differentiated_and_vectorised(getkey):
    w, x = jr.normal(getkey(), (3,)), jr.normal(getkey(), (7, 3))

    def fun(w, x):
        return jnp.mean(jnp.tanh(x @ w) ** 2)

    micro = microbatch(fun, 1, 3, MEAN)

    ws = jr.normal(getkey(), (4, 3))
    for transformed in (
        lambda f: jax.grad(f, (0, 1))(w, x),
        lambda f: jax.jvp(f, (w, x), (w, x)),
        lambda f: jax.hessian(f)(w, x),
        lambda f: jax.vmap(f, (None, 1))(w, jnp.stack([x, -x], 1)),
        lambda f: jax.vmap(jax.grad(f), (0, None))(ws, x),
    ):
        assert_close(*jax.jit(lambda t=transformed: (t(micro), t(fun)))(), tol=1e-5)


def test_a_traced_number_can_be_vectorised():
    @jax.jit
    @jax.vmap
    def fun(x, k):
        return microbatch(jnp.sum, 0, 3, num_real_microbatches=k)(x)

    assert fun(jnp.ones((4, 8)), jnp.arange(4)).tolist() == [0, 3, 6, 8]


@pytest.mark.parametrize(("rows", "traces"), [(0, 1), (2, 1), (6, 1), (7, 2)])
@pytest.mark.parametrize("num_real", [None, np.int32(1)])
def test_traced_once_per_shape(rows, traces, num_real):
    traced = []
    fun = lambda x: (traced.append(x.shape), jnp.sum(x))[1]
    micro = eqx.filter_jit(microbatch(fun, 0, 2, num_real_microbatches=num_real))
    for _ in range(2):
        micro(jnp.ones(rows))
        assert len(traced) == traces


def test_bools_have_no_sum():
    with pytest.raises(ValueError, match=r"SUM cannot combine `output`.*bool"):
        microbatch(lambda x: jnp.any(x > 0), 0, 1)(jnp.ones(4))


# `micro_vmap`


def test_keyword_arguments_are_mapped():
    x, y = jnp.arange(20.0).reshape(5, 4), jnp.arange(5)
    fun = micro_vmap(lambda x, *, y, f: f(x[y % 4]), microbatch_size=2)
    np.testing.assert_array_equal(fun(x, y=y, f=jnp.square), x[y, y % 4] ** 2)


def test_collectives_see_a_microbatch():
    vmap_fn = ft.partial(jax.vmap, axis_name="i")
    fun = micro_vmap(lambda x: jax.lax.psum(x, "i"), vmap_fn=vmap_fn, microbatch_size=2)
    assert fun(jnp.arange(4)).tolist() == [2, 4, 2, 4]
