"""What the laws and the comparison with Optax do not say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt


@pytest.mark.parametrize("max_norm", [0.0, 1.0])
def test_clipping_zeros_gives_zeros(max_norm):
    opt, zeros = eqopt.ClipByGlobalNorm(max_norm), jnp.zeros(3)
    updates, _ = opt.update(zeros, opt.init(zeros))
    assert (updates == 0).all()


def test_clipping_to_nothing_gives_zeros():
    opt = eqopt.ClipByGlobalNorm(0.0)
    updates, _ = opt.update(jnp.ones(3), None)
    assert (updates == 0).all()


@pytest.mark.parametrize(
    "opt", [eqopt.ClipByGlobalNorm(1.0), eqopt.ClipByBlockRMS(1.0)], ids=repr
)
def test_clipping_hides_nothing_that_is_not_finite(opt):
    grads = jnp.ones(3)
    updates, _ = opt.update(grads.at[0].set(jnp.nan), None)
    np.testing.assert_array_equal(updates, np.nan)
    updates, _ = opt.update(grads.at[0].set(-jnp.inf), None)
    np.testing.assert_array_equal(updates, [np.nan, 0, 0])


def test_clipping_does_not_overflow_in_float16():
    """The squares do not fit into float16; their norm does."""
    grads = jnp.full(4, 3e4, jnp.float16)
    updates, _ = eqopt.ClipByGlobalNorm(2.0).update(grads, None)
    np.testing.assert_allclose(updates, 1.0, rtol=1e-3)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(
    "opt",
    [
        eqopt.ClipByGlobalNorm(1.0),
        eqopt.AdaptiveGradClip(0.01),
        eqopt.ClipByBlockRMS(1.0),
        eqopt.Normalize(),
        eqopt.NormalizeByUpdateNorm(),
    ],
    ids=repr,
)
def test_squares_that_overflow_give_zeros(opt, dtype):
    """Finite gradients do not become NaN or infinite."""
    huge = jnp.full(4, 1e25, dtype)
    updates, _ = opt.update(huge, opt.init(huge), jnp.ones_like(huge))
    np.testing.assert_array_equal(updates.astype(jnp.float32), 0.0)


@pytest.mark.parametrize("per_example", [False, True])
@pytest.mark.costly
def test_examples_whose_squares_overflow_add_nothing(per_example):
    x = jnp.array([[1e25, 0.0], [0.0, 1.0]])
    if per_example:
        found, _ = eqopt.per_example_global_norm_clip(x, 1.0)
    else:
        clipped = eqopt.microbatching.clipped_grad(lambda w, x: jnp.sum(x @ w), 1.0)
        found, _ = clipped(jnp.ones(2), x)
    np.testing.assert_array_equal(found, [0.0, 1.0])


def test_zeros_also_where_nothing_is_finite():
    updates, _ = eqopt.SetToZero().update(jnp.array([jnp.nan, jnp.inf]), None)
    assert (updates == 0).all()


def test_schedules_start_at_zero():
    schedule = lambda count: 1.0 + count.astype(jnp.float32)
    opt = eqopt.ScaleByLearningRate(schedule)
    grads = jnp.ones(())
    state = opt.init(grads)
    assert eqopt.tree.get(state, "learning_rate") == 1.0
    for expected in (1.0, 2.0, 3.0):
        updates, state = opt.update(grads, state)
        assert updates == -expected
        assert eqopt.tree.get(state, "learning_rate") == expected


def test_counts_saturate():
    opt = eqopt.Adam(0.1)
    params = jnp.ones(2)
    last = 2**31 - 1
    state = eqopt.tree.set(opt.init(params), all=True, count=last)
    params, state = jax.jit(opt.step)(params, state, params)
    counts = [count for _, count in eqopt.tree.get_all_with_path(state, "count")]
    assert counts == [last, last]
    assert jnp.isfinite(params).all()
