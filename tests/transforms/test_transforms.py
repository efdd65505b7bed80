"""What the laws and the comparison with Optax do not say."""

import jax.numpy as jnp
import numpy as np
import pytest

import eqopt


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


def test_zeros_also_where_nothing_is_finite():
    updates, _ = eqopt.SetToZero().update(jnp.array([jnp.nan, jnp.inf]), None)
    assert (updates == 0).all()
