"""Building blocks: what the laws and the comparison with Optax do not say."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqopt


# Units


def layer_with(weight):
    rows, columns = weight.shape[-2:]
    make = lambda key: eqx.nn.Linear(columns, rows, use_bias=False, key=key)
    keys = jr.split(jr.key(0), weight.shape[0])
    layer = make(keys[0]) if weight.ndim == 2 else eqx.filter_vmap(make)(keys)
    return eqx.tree_at(lambda layer: layer.weight, layer, weight)


@pytest.mark.parametrize("shape", [(2, 3), (4, 2, 3)], ids=["layer", "stacked"])
def test_units_of_layers(shape):
    """Rows of the matrices in Equinox's layers, whatever else the tree holds."""
    weight, grad = (np.asarray(jr.normal(jr.key(i), shape)) for i in range(2))
    model = {"layer": layer_with(jnp.asarray(weight)), "activation": jnp.tanh}
    grads = {"layer": layer_with(jnp.asarray(grad)), "activation": None}
    opt = eqopt.AdaptiveGradClip(0.5, eps=0.7)
    updates, _ = eqx.filter_jit(opt.update)(grads, None, model)
    norm = lambda x: np.sqrt((x**2).sum(-1, keepdims=True))
    allowed = 0.5 * np.maximum(norm(weight), 0.7)
    expected = grad * np.minimum(1, allowed / norm(grad))
    np.testing.assert_allclose(updates["layer"].weight, expected, 1e-5)


def test_units_of_convolutions():
    conv = eqx.nn.Conv2d(2, 3, 2, use_bias=False, key=jr.key(0))
    grads = jax.tree.map(lambda p: 100 * p, eqx.filter(conv, eqx.is_array))
    updates, _ = eqopt.AdaptiveGradClip(0.1).update(grads, None, conv)
    np.testing.assert_allclose(updates.weight, 0.1 * conv.weight, 1e-5)
    tilted = eqx.tree_at(lambda g: g.weight, grads, grads.weight.at[0].multiply(1e-4))
    updates, _ = eqopt.AdaptiveGradClip(0.1).update(tilted, None, conv)
    np.testing.assert_allclose(updates.weight[0], 0.01 * conv.weight[0], 1e-5)
    np.testing.assert_allclose(updates.weight[1], 0.1 * conv.weight[1], 1e-5)


def test_norms_of_units():
    x = jr.normal(jr.key(0), (3, 4))
    columns = np.sqrt((np.asarray(x) ** 2).sum(0))
    np.testing.assert_allclose(
        eqopt.unitwise_norm(x), np.broadcast_to(columns, (3, 4)), 1e-6
    )
    half = eqopt.unitwise_norm(jnp.full(4, 300, jnp.float16))
    assert half.dtype == jnp.float32 and (half == 600).all()
    slope = jax.grad(lambda x: eqopt.unitwise_norm(x).sum())(jnp.zeros(3))
    assert (slope == 0).all()


def test_clipping_units():
    grad = jnp.array([3.0, 4.0], jnp.bfloat16)
    g_norm, max_norm = jnp.array([1.0, 4.0]), jnp.array([2.0, 2.0])
    clipped = eqopt.unitwise_clip(g_norm, max_norm, grad)
    assert clipped.dtype == jnp.bfloat16 and clipped.tolist() == [3.0, 2.0]
    with pytest.raises(ValueError, match=r"shapes do not fit: `g_norm` has \[3\]"):
        eqopt.unitwise_clip(jnp.ones(3), max_norm, grad)


# Plateaus


def scales(opt, values):
    """The scale in each step."""
    params = jnp.ones(2)
    update = eqx.filter_jit(lambda s, v: opt.update(params, s, value=v))
    state, seen = opt.init(params), []
    for value in values:
        updates, state = update(state, jnp.asarray(value))
        seen.append(float(updates[0]))
    return np.array(seen)


def test_a_nan_is_no_improvement():
    opt = eqopt.ReduceLROnPlateau(0.5, 2)
    seen = scales(opt, [np.nan, np.nan, 1.0, 0.5])
    np.testing.assert_array_equal(seen, [1, 0.5, 0.5, 0.5])


# The others


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.complex64])
def test_nans_are_found_wherever_they_are(dtype):
    opt, size = eqopt.ZeroNaNs(), 7
    clean = jnp.linspace(-2, 3, size).astype(dtype).at[0].set(jnp.inf)
    update = jax.jit(opt.update)
    state = opt.init({"x": clean, "empty": jnp.zeros(0, dtype)})
    for place in (0, size // 2, size - 1):
        bad = {"x": clean.at[place].set(jnp.nan), "empty": jnp.zeros(0, dtype)}
        updates, state = update(bad, state)
        assert state.found_nan["x"] and not state.found_nan["empty"]
        assert updates["x"][place] == 0
        others = np.delete(np.arange(size), place)
        np.testing.assert_array_equal(updates["x"][others], clean[others])
    _, state = update({"x": clean, "empty": jnp.zeros(0, dtype)}, state)
    assert not state.found_nan["x"]


@pytest.mark.parametrize(
    ("dtype", "of_grads"),
    [
        (jnp.float32, jnp.float32),
        (jnp.bfloat16, jnp.bfloat16),
        (jnp.complex64, jnp.complex64),
        (jnp.float32, jnp.bfloat16),
    ],
)
@pytest.mark.costly
def test_parameters_stay_nonnegative(dtype, of_grads):
    """After `step`. Updates in a dtype with fewer digits are rounded, either way."""
    params = jnp.abs(jr.normal(jr.key(0), (100,))).astype(dtype)
    params = params.at[:3].set(jnp.array([0, 1e-3, -2], dtype))
    opt = eqopt.Chain(eqopt.SGD(0.7), eqopt.KeepParamsNonnegative())
    state = opt.init(params)
    for i in range(5):
        grads = jr.normal(jr.key(i), (100,), jnp.float32).astype(of_grads)
        params, state = opt.step(grads, state, params)
        assert (params.real >= 0).all() and (params.imag >= 0).all()
    assert (params == 0).any() and (params.real > 0).any()
