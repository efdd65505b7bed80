"""Custom accumulators, and trees of them."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from eqopt.microbatching import AccumulationType, Accumulator, micro_vmap, microbatch


SUM, CONCAT = AccumulationType.SUM, AccumulationType.CONCAT

largest = Accumulator(
    init=lambda like: jnp.full(like.shape, -jnp.inf, like.dtype),
    update=lambda carry, value, index: jnp.maximum(carry, value),
    finalize=lambda carry: carry,
    aggregate=lambda values: jnp.max(values, axis=0),
)


@pytest.mark.parametrize("size", [None, 1, 2, 3])
@pytest.mark.costly
def test_custom(size):
    x = jnp.array([3.0, -1.0, 4.0, 1.0, 5.0])
    assert microbatch(jnp.max, 0, size, largest)(x) == 5
    out, total = microbatch(lambda x: (jnp.max(x), x.sum()), 0, size, (largest, SUM))(x)
    assert (out, total) == (5, 12)
    # As `micro_vmap` uses it, on one row at a time.
    assert micro_vmap(lambda x: -x, microbatch_size=size, accumulator=largest)(x) == 1


def test_custom_takes_a_subtree_and_may_change_it():
    # Pairs (weight, value) to a weighted mean. Non-array leaves are `None`.
    def init(like):
        assert like[1]["unit"] is None
        return jnp.zeros(()), jnp.zeros(())

    weighted = Accumulator(
        init=init,
        update=lambda carry, value, index: (
            carry[0] + value[0],
            carry[1] + value[0] * value[1]["x"],
        ),
        finalize=lambda carry: carry[1] / carry[0],
        aggregate=lambda values: values,
    )

    def fun(x, mask):
        weight = mask.sum()
        return {"w": (weight, {"x": (x * mask).sum() / weight, "unit": "m"}), "n": x}

    x, mask = jnp.arange(5.0), jnp.array([1.0, 1.0, 0.0, 1.0, 1.0])
    micro = eqx.filter_jit(microbatch(fun, (0, 1), 2, {"w": weighted, "n": CONCAT}))
    out = micro(x, mask)
    np.testing.assert_allclose(out["w"], (x * mask).sum() / mask.sum(), rtol=1e-6)
    np.testing.assert_array_equal(out["n"], x)


def test_index_counts_microbatches():
    indices = Accumulator(
        init=lambda like: jnp.zeros(3, jnp.int32),
        update=lambda carry, value, index: carry.at[index].set(index + 10),
        finalize=lambda carry: carry,
        aggregate=lambda values: values,
    )
    assert microbatch(jnp.sum, 0, 2, indices)(jnp.ones(5)).tolist() == [10, 11, 12]


@pytest.mark.parametrize(
    "accumulator",
    [SUM, {"a": SUM, "b": SUM}, {"a": SUM, "b": (SUM, None, SUM)}],
    ids=["one", "prefix", "leaves"],
)
def test_prefixes(accumulator):
    def fun(x):
        return {"a": x.sum(), "b": (x.sum() + 1, None, "label")}

    out = microbatch(fun, 0, 2, accumulator)(jnp.arange(4))
    assert out == {"a": 6, "b": (8, None, "label")}
