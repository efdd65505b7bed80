"""Layerwise optimizers, beyond the laws and the comparison with Optax."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqopt


def normal(seed, *shape):
    return jr.normal(jr.key(seed), shape)


def steps(opt, params, grads):
    """The parameters after a step with each of the gradients, and the state."""
    state = opt.init(params)
    for g in grads:
        params, state = opt.step(g, state, params)
    return params, state


def test_novograd_by_hand():
    """The paper's algorithm, with a decay that excludes one of two layers."""
    rng = np.random.default_rng(0)
    p = [rng.normal(size=(2, 3)), rng.normal(size=3)]
    gs = [[rng.normal(size=x.shape) for x in p] for _ in range(3)]
    to_jax = lambda leaves: [jnp.asarray(x, jnp.float32) for x in leaves]
    opt = eqopt.NovoGrad(0.1, 0.8, 0.6, 1e-3, weight_decay=0.2, mask=[True, False])
    params, state = steps(opt, to_jax(p), [to_jax(g) for g in gs])
    for i, decay in enumerate((0.2, 0.0)):
        m = v = 0
        for t, g in enumerate(gs):
            norm = np.sum(g[i] ** 2)
            v = norm if t == 0 else 0.6 * v + 0.4 * norm
            m = 0.8 * m + g[i] / (np.sqrt(v) + 1e-3) + decay * p[i]
            p[i] = p[i] - 0.1 * m
        np.testing.assert_allclose(params[i], p[i], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(state[0].nu[i], v, rtol=1e-5)


def test_novograd_of_zeros_without_eps():
    zeros = jnp.zeros(3)
    updates, _ = (opt := eqopt.ScaleByNovoGrad(eps=0.0)).update(zeros, opt.init(zeros))
    assert not updates.any()


def factored_by_hand(gs, rows, columns, eps):
    """The updates of NumPy arrays with `rows` and `columns` as the axes of matrices."""
    r = c = 0
    for t, g in enumerate(gs, 1):
        decay, square = 1 - t**-0.8, g**2 + eps
        r = decay * r + (1 - decay) * square.mean(columns, keepdims=True)
        c = decay * c + (1 - decay) * square.mean(rows, keepdims=True)
        yield g / np.sqrt(r * c / r.mean(rows, keepdims=True))


@pytest.mark.parametrize(
    ("shape", "numbers"),
    [
        ((4, 3), eqopt.MatrixDimensionNumbers()),
        ((5, 4, 3), eqopt.MatrixDimensionNumbers(-1, -2)),  # stacked linear layers
        ((4, 3, 2, 2), eqopt.MatrixDimensionNumbers((1, 2, 3), 0)),  # a convolution
        ((6, 4, 3, 2), eqopt.MatrixDimensionNumbers((-2, -1), -3)),  # stacked ones
    ],
)
@pytest.mark.slow
def test_dimension_numbers(shape, numbers):
    rng = np.random.default_rng(0)
    gs = [rng.normal(size=shape) for _ in range(3)]
    opt = eqopt.ScaleByFactoredRMS(eps=0.1, weight_dimension_numbers=numbers)
    params = jnp.zeros(shape)
    state = opt.init(params)
    turn = lambda axes: tuple(
        a % len(shape) for a in (axes if isinstance(axes, tuple) else (axes,))
    )
    rows, columns = turn(numbers.reduction_axis), turn(numbers.output_axis)
    for g, expected in zip(gs, factored_by_hand(gs, rows, columns, 0.1), strict=True):
        updates, state = opt.update(jnp.asarray(g, jnp.float32), state, params)
        np.testing.assert_allclose(updates, expected, rtol=1e-5)
    left_out = lambda axes: tuple(n for a, n in enumerate(shape) if a not in axes)
    assert state.v_row.shape == left_out(columns)
    assert state.v_col.shape == left_out(rows)
    assert state.v == ()


@pytest.mark.parametrize("factored", [True, False])
@pytest.mark.costly
def test_clipping_inside_equals_clipping_afterwards(factored):
    make = lambda **data: eqopt.ScaleByFactoredRMS(
        factored, min_dim_size_to_factor=2, **data
    )
    inside = make(clipping_threshold=0.3)
    behind = eqopt.Chain(make(), eqopt.ClipByBlockRMS(0.3))
    params = normal(0, 4, 3)
    grads = [normal(1 + i, 4, 3) for i in range(3)]
    ends = [steps(opt, params, grads)[0] for opt in (inside, behind)]
    np.testing.assert_allclose(*ends, rtol=1e-5)


def test_what_is_factored_by_default():
    params = {
        "large": jnp.ones((2, 130, 128)),
        "small": jnp.ones((200, 100)),
        "vector": jnp.ones(300),
        "none": None,
    }
    state = jax.jit(eqopt.Adafactor(0.1).init)(params)[0]
    shapes = lambda tree: {k: getattr(x, "shape", x) for k, x in tree.items()}
    unused = {"small": (), "vector": (), "none": None}
    assert shapes(state.v_row) == {"large": (2, 128), **unused}
    assert shapes(state.v_col) == {"large": (2, 130), **unused}
    v = {"large": (), "small": (200, 100), "vector": (300,), "none": None}
    assert shapes(state.v) == v


def test_factored_rms_of_zeros_without_eps():
    zeros = jnp.zeros((3, 2))
    opt = eqopt.ScaleByFactoredRMS(
        min_dim_size_to_factor=1, eps=0.0, clipping_threshold=1.0
    )
    updates, _ = opt.update(zeros, opt.init(zeros), zeros)
    assert not updates.any()


def test_the_state_of_another_shape():
    opt = eqopt.Adafactor(0.1, min_dim_size_to_factor=2)
    state = opt.init({"w": jnp.ones((2, 3))})
    params = {"w": jnp.ones((2, 4))}
    with pytest.raises(ValueError, match=r"shapes do not fit at `\['w'\]`"):
        opt.update(params, state, params)


def test_factored_rms_of_nothing():
    """An empty array is not factored, because its rows have no mean."""
    params = {"w": jnp.ones((3, 4)), "empty": jnp.ones((0, 5))}
    numbers = eqopt.MatrixDimensionNumbers()
    opt = eqopt.ScaleByFactoredRMS(weight_dimension_numbers=numbers)
    updates, state = opt.update(params, opt.init(params), params)
    assert updates["empty"].shape == state.v["empty"].shape == (0, 5)
    assert all(jnp.isfinite(x).all() for x in jax.tree.leaves(state))
