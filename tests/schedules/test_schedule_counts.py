"""Many counts at once, and numbers of steps that no count reaches."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqopt import schedules


BEYOND = 2**31  # the first integer that is no count


@pytest.mark.parametrize("kind", [jnp.asarray, np.asarray, np.uint8, np.int64])
def test_many_counts(case, kind):
    counts = kind(np.arange(10).reshape(2, 5))
    values = case.ours(counts)
    assert isinstance(values, jax.Array)
    assert (values.shape, values.dtype, values.weak_type) == ((2, 5), "float32", False)
    one_by_one = [case.ours(int(count)) for count in counts.ravel()]
    np.testing.assert_allclose(
        values.ravel(), np.stack(one_by_one), rtol=1e-5, atol=1e-7
    )


def test_many_counts_in_all_integers():
    line = schedules.Linear(1.0, 0.0, 10)
    for dtype in (np.int8, np.uint8, np.int64, np.uint64):
        info = np.iinfo(dtype)
        values = line(np.array([info.min, 0, 5, info.max], dtype))
        np.testing.assert_allclose(values, [1, 1, 0.5, 0])
    np.testing.assert_allclose(line(np.array([-(2**32) - 5, -(2**31) - 1])), [1, 1])
    assert line(jnp.arange(0)).shape == (0,)
    assert eqx.filter_jit(line)(jnp.arange(3)).shape == (3,)
    assert jax.vmap(line)(jnp.zeros((2, 3), int)).shape == (2, 3)
    with jax.enable_x64(True):
        assert schedules.Constant(np.array(1.0))(np.arange(3)).dtype == jnp.float64


def test_a_number_of_steps_beyond_all_counts_is_an_error(case):
    for field in dataclasses.fields(case.ours):
        value = getattr(case.ours, field.name)
        is_count = isinstance(value, int) and not isinstance(value, bool)
        if is_count and field.name != "power":
            with pytest.raises(ValueError, match=r"largest count|must be"):
                dataclasses.replace(case.ours, **{field.name: BEYOND})
