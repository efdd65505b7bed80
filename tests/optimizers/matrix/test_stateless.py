"""SinkGD and SCALE, beyond the laws and the formulas in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt

from ...parity.matrices import NUMBERS


pytestmark = pytest.mark.slow


# Rows are outputs, as in the formulas.


def normals(shape):
    return jnp.asarray(np.random.default_rng(0).normal(size=shape))


def balanced(g, **options):
    opt = eqopt.ScaleBySinkhorn(weight_dimension_numbers=NUMBERS, **options)
    return np.asarray(opt.update(g, None)[0])


@pytest.mark.parametrize(
    ("target", "norm"), [("unit", 1), ("unit_rms", (4 / 7) ** 0.5)]
)
@pytest.mark.parametrize("kind", [jnp.float64, jnp.complex128])
def test_spectral_norm(target, norm, kind, x64):
    """The power iteration continues from step to step until it finds the norm."""
    opt = eqopt.ScaleBySinkhorn(
        spectral_target=target, weight_dimension_numbers=NUMBERS
    )
    with x64():
        g = normals((4, 7)).astype(kind)
        if kind == jnp.complex128:
            g = jax.lax.complex(g.real, normals((7, 4)).T)
        state, update = opt.init(g), jax.jit(opt.update)
        assert state.right.shape == (1, 7)
        u = first = update(g, state)[0]
        for _ in range(200):
            u, state = update(g, state)
        plain = balanced(g)
    np.testing.assert_allclose(np.linalg.norm(u, 2), norm, rtol=1e-9)
    np.testing.assert_allclose(u / u[0, 0], plain / plain[0, 0], rtol=1e-9)
    assert 1.001 * norm < np.linalg.norm(first, 2) < 2 * norm


def test_spectral_norm_of_a_new_kind_of_gradient():
    """It works for gradients that are orthogonal to earlier ones, or zero."""
    opt = eqopt.ScaleBySinkhorn(spectral_target="unit", power_steps=20)
    left = jnp.zeros((3, 4)).at[:, :2].set(normals((3, 2)))
    right = jnp.flip(left, 1)
    state = opt.init(left)
    for g in (left, 0 * left, right, 0 * left, left):
        u, state = opt.update(g, state)
        expected = 1 if g.any() else 0
        np.testing.assert_allclose(np.linalg.norm(u, 2), expected, atol=1e-3)


def test_only_the_last_layer_has_momentum():
    params = {"head": jnp.ones((2, 3)), "hidden": jnp.ones((3, 3)), "bias": jnp.ones(2)}
    last = {"head": True, "hidden": False, "bias": True}
    opt = eqopt.SCALE(1.0, 0.5, last, fallback=eqopt.SGD(1.0))
    state = opt.init(params)
    ema = eqopt.tree.get(state, "ema")
    assert ema["hidden"] is None and ema["bias"] is None
    g = jax.tree.map(lambda p: normals(p.shape), params)
    _, state = opt.update(g, state, params)
    h = jax.tree.map(jnp.flip, g)
    u, _ = opt.update(h, state, params)
    divided, _ = eqopt.ScaleByRowNorm().update(
        {"head": g["head"] / 4 + h["head"] / 2, "hidden": h["hidden"]}, None
    )
    np.testing.assert_allclose(u["head"], -divided["head"], rtol=1e-5)
    np.testing.assert_allclose(u["hidden"], -divided["hidden"], rtol=1e-5)
    np.testing.assert_allclose(u["bias"], -h["bias"])


def test_only_one_correction_for_the_width():
    with pytest.raises(ValueError, match="SinkGD: `base_width` needs `spectral_"):
        eqopt.SinkGD(1.0, base_width=64, spectral_target="unit_rms")
