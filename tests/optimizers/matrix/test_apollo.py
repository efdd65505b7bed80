"""APOLLO, beyond the laws and the comparison by hand."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqopt

from ...parity.matrices import NUMBERS
from .programs import compiled_decompositions, decompositions


def scale_by_apollo(rank, **arguments):
    arguments = {"max_growth": None, "weight_dimension_numbers": NUMBERS, **arguments}
    return eqopt.ScaleByAPOLLO(rank, **arguments)


def moved(opt, grads):
    state, updates = opt.init(grads[0]), []
    for g in grads:
        u, state = opt.update(g, state)
        updates.append(u)
    return updates, state


def grads_of(shape, steps, dtype=jnp.float32):
    return [jr.normal(jr.key(i), shape, dtype) for i in range(steps)]


@pytest.mark.parametrize("scale_type", ["channel", "tensor"])
@pytest.mark.parametrize("dtype", [jnp.float64, jnp.complex128])
@pytest.mark.slow
def test_first_step(scale_type, dtype, x64):
    """After bias correction, all elements of Adam's first update have modulus one."""
    with x64():
        (g,) = grads_of((4, 6), 1, dtype)
        opt = scale_by_apollo(4, scale_type=scale_type, proj="svd", eps=0.0)
        (u,), _ = moved(opt, [g])
        axis = 0 if scale_type == "channel" else None
        # At full rank, the projection R has the same norm as G.
        factors = np.sqrt(4 if axis == 0 else 24) / np.linalg.norm(g, axis=axis)
        np.testing.assert_allclose(u, np.asarray(g) * factors, rtol=1e-7)


@pytest.mark.parametrize("shape", [(4, 6), (6, 4), (4, 4)])
@pytest.mark.slow
def test_random_projections_can_be_reproduced(shape):
    """From the key, the number of steps and the index of the leaf."""
    key, rank, gap = jr.key(7), 2, 2
    opt = scale_by_apollo(
        rank, update_proj_gap=gap, b1=0.0, b2=0.0, eps=0.0, key=key, scale=4.0
    )
    grads = [[g[0], g] for g in grads_of(shape, 5)]
    updates, _ = moved(opt, grads)
    for t, ((_, g), (vector, u)) in enumerate(zip(grads, updates, strict=True)):
        np.testing.assert_array_equal(vector, g[0])
        x = np.asarray(g if shape[0] < shape[1] else g.T)
        folded = jr.fold_in(jr.fold_in(key, t // gap), 1)
        projector = np.asarray(jr.normal(folded, (len(x), rank))) / np.sqrt(rank)
        # Without momentum, only the signs of the projected gradient remain.
        lengths = np.linalg.norm(projector.T @ x, axis=0)
        expected = 2 * x * np.sqrt(rank) / lengths
        np.testing.assert_allclose(u if shape[0] < shape[1] else u.T, expected, 1e-4)


@pytest.mark.slow
def test_matrices_of_a_stack_have_different_projections():
    g = jnp.stack(2 * grads_of((4, 6), 1))
    (u,), state = moved(scale_by_apollo(2), [g])
    assert state.mu[0].shape == (2, 2, 6) and state.norm.shape == (2, 1, 1)
    assert not np.allclose(state.mu[0][0], state.mu[0][1])
    assert not np.allclose(u[0], u[1])


@pytest.mark.slow
def test_limit_of_growth():
    """There is no limit for the first update, or after a zero one."""
    (g,) = grads_of((4, 6), 1)
    limited = scale_by_apollo(2, max_growth=1.05)
    grads = [0 * g, g, 10 * g, g]
    (zero, *updates), _ = moved(limited, grads)
    (_, *free), _ = moved(scale_by_apollo(2), grads)
    assert not zero.any()
    corrections = np.array([np.sqrt(1 - 0.999**t) / (1 - 0.9**t) for t in range(2, 5)])
    norms = np.array([np.linalg.norm(u) for u in updates]) / corrections
    frees = np.array([np.linalg.norm(u) for u in free]) / corrections
    last = frees[0]
    for norm, before in zip(norms, frees, strict=True):
        last = min(before, 1.05 * last)
        np.testing.assert_allclose(norm, last, rtol=1e-4)
    assert norms[1] < 0.99 * frees[1]


@pytest.mark.slow
def test_where_a_constant_scale_is_applied_does_not_matter():
    """The limit is for the growth of an update, not for its size."""
    grads = grads_of((4, 6), 4)
    options = {"max_growth": 1.05, "scale": 9.0}
    front, _ = moved(scale_by_apollo(2, scale_front=True, **options), grads)
    back, _ = moved(scale_by_apollo(2, **options), grads)
    for u, expected in zip(front, back, strict=True):
        np.testing.assert_allclose(u, expected, rtol=1e-5)


@pytest.mark.parametrize("proj", ["random", "svd"])
def test_state(proj):
    state = eqopt.APOLLO(0.1, 2, proj=proj).init({"w": jnp.zeros((8, 5))})
    sizes = [x.size for x in jax.tree.leaves(eqopt.tree.get(state, "projector"))]
    assert sizes == ([] if proj == "random" else [10])
    mini = eqopt.ScaleByAPOLLO(1, scale_type="tensor").init(jnp.zeros((100, 100)))
    assert sum(x.size for x in jax.tree.leaves(mini)) == 2 * 100 + 2


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4)])
@pytest.mark.costly
def test_decompositions_are_under_conditions(shape):
    opt, params = scale_by_apollo(2, proj="svd"), jnp.ones(shape)
    arguments = params, opt.init(params)
    assert decompositions(opt.update, *arguments) == (set(), {"svd"})
    if jax.default_backend() == "cpu":
        assert compiled_decompositions(opt.update, *arguments) == (0, 1)


@pytest.mark.parametrize("proj", ["random", "svd"])
@pytest.mark.slow
def test_zeros(proj):
    opt, zeros = scale_by_apollo(2, proj=proj, max_growth=1.01), jnp.zeros((4, 6))
    move = lambda g: opt.update(g, opt.init(zeros))[0]
    assert not move(zeros).any()
    gradient = jax.grad(lambda g: jnp.sum(jnp.sin(move(g))))(zeros)
    assert jnp.isfinite(gradient).all()
