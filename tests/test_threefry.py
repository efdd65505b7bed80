"""Random numbers have the same bits as JAX's, and take no memory."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from eqopt._trees import threefry


SHAPES = [(), (7,), (3, 4, 5), (0, 3)]


@pytest.mark.parametrize("draw", ["normal", "rademacher"])
@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.complex64])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.costly
def test_same_bits_as_jax(draw, impl, dtype, shape):
    if draw == "rademacher" and dtype is jnp.complex64:
        dtype = jnp.bfloat16
    key = jr.key(3, impl=impl)
    ours = jax.jit(lambda key: getattr(threefry, draw)(key, shape, dtype))(key)
    theirs = getattr(jr, draw)(key, shape, dtype)
    assert ours.dtype == theirs.dtype
    np.testing.assert_array_equal(ours, theirs)


def test_same_bits_under_vmap():
    keys = jr.split(jr.key(0), 3)
    ours = jax.vmap(lambda key: threefry.normal(key, (5,), jnp.float32))(keys)
    theirs = jax.vmap(lambda key: jr.normal(key, (5,)))(keys)
    np.testing.assert_array_equal(ours, theirs)


def test_old_way_of_counting_is_left_to_jax():
    key = jr.key(0)
    with jax.threefry_partitionable(False):
        ours, theirs = threefry.normal(key, (6,), jnp.float32), jr.normal(key, (6,))
    np.testing.assert_array_equal(ours, theirs)
    assert not np.array_equal(ours, jr.normal(key, (6,)))


@pytest.mark.parametrize("draw", ["normal", "rademacher"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.costly
def test_double_precision(draw, dtype, x64):
    with x64():
        key = jr.key(1)
        ours = getattr(threefry, draw)(key, (20,), dtype)
        np.testing.assert_array_equal(ours, getattr(jr, draw)(key, (20,), dtype))


def test_no_temporary_memory():
    shape = 500, 1000
    add = jax.jit(
        lambda x, key: x + threefry.normal(key, shape, x.dtype), donate_argnums=0
    )
    x = jax.ShapeDtypeStruct(shape, jnp.float32)
    compiled = add.lower(x, jax.eval_shape(lambda: jr.key(0))).compile()
    memory = compiled.memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes < 0.01 * 4 * 500 * 1000
