"""SOAP, beyond the laws and the formulas in its row."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqopt

from ...parity.matrices import NUMBERS


def run(opt, grads, params=None):
    """All updates, and the last state."""
    state = opt.init(grads[0] if params is None else params)
    update, seen = eqx.filter_jit(opt.update), []
    for g in grads:
        updates, state = update(g, state)
        seen.append(updates)
    assert all(jnp.isfinite(x).all() for x in jax.tree.leaves(seen))
    return seen, state


def normal(steps, *shape, seed=0):
    return np.random.default_rng(seed).normal(size=(steps, *shape))


def soap(**arguments):
    return eqopt.ScaleBySOAP(weight_dimension_numbers=NUMBERS, **arguments)


def test_without_a_preconditioner_it_is_adam_one_step_later(x64):
    """Except for `eps`, which is added to the second moment before its correction."""
    b1, b2, eps = 0.8, 0.9, 0.1
    opt = soap(b1=b1, b2=b2, eps=eps, max_precond_dim=2)
    grads, m, v = normal(6, 3, 4), 0, 0
    with x64():
        updates, state = run(opt, [jnp.asarray(g) for g in grads])
        assert state.factors == state.basis == (None, None)
        assert not updates[0].any()
        for t, g in enumerate(grads[1:], 1):
            m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
            corrected = np.sqrt(v / (1 - b2**t)) + eps / np.sqrt(1 - b2**t)
            expected = m / (1 - b1**t) / corrected
            np.testing.assert_allclose(updates[t], expected, rtol=1e-10)


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.complex128])
@pytest.mark.slow
def test_bases_stay_orthogonal(dtype, x64):
    opt = soap(precondition_frequency=1)
    with x64():
        grads = jr.normal(jr.key(0), (20, 5, 3), dtype)
        state, update = opt.init(grads[0]), jax.jit(opt.update)
        for g in grads:
            _, state = update(g, state)
            for q in map(np.asarray, state.basis):
                product = q.conj().T @ q
                np.testing.assert_allclose(product, np.eye(len(q)), rtol=0, atol=1e-12)


@pytest.mark.parametrize("skip_first", [False, True])
@pytest.mark.parametrize("kl", [False, True])
@pytest.mark.slow
def test_after_a_zero_gradient(kl, skip_first):
    """A first gradient of zero gives no basis: it is the identity until a refresh."""
    opt = soap(kl=kl, skip_first=skip_first)
    grads = jr.normal(jr.key(0), (13, 3, 4))
    (zero, *updates), _ = run(opt, grads.at[0].set(0))
    assert not zero.any()
    for u in updates:
        assert 0.1 < jnp.sqrt(jnp.mean(u**2)) < 1.1


@pytest.mark.slow
def test_on_cuda_a_batch_is_decomposed_matrix_by_matrix():
    """The batched function takes 50 times as long (8 of 1024 x 1024, H200)."""
    opt, params = eqopt.SOAP(0.1), {i: jnp.ones((16, 16)) for i in range(8)}
    step = jax.jit(opt.step).trace(params, opt.init(params), params)
    text = step.lower(lowering_platforms=("cuda",)).as_text()
    calls = [line for line in text.splitlines() if "@cusolver_geqrf_ffi" in line]
    assert calls and all(line.count("tensor<16x16xf32>") == 2 for line in calls)


@pytest.mark.parametrize(
    ("fresh", "expected"),
    [
        (
            False,
            [
                [-0.08613163, 0.08592502, -0.28487074],
                [-0.06934954, -0.08838246, -0.06252392],
                [-0.33974755, -0.05551604, 0.10860793],
            ],
        ),
        (
            True,
            [
                [-0.04100745, 0.10646886, -0.19136522],
                [-0.23780462, -0.12274478, -0.19561063],
                [-0.0121278, -0.03229564, 0.31210735],
            ],
        ),
    ],
)
def test_three_steps(fresh, expected):
    """Computed apart, without the shift, whose effect is below 1e-3."""
    grads = [
        [[3.0, 0, 1], [1, 2, 0], [0, 1, 1]],
        [[1.0, -1, 2], [0, 1, 1], [1, 0, -2]],
        [[0.0, 2, 1], [2, -1, 1], [1, 1, 0]],
    ]
    opt = eqopt.Chain(soap(precondition_frequency=1, fresh=fresh), eqopt.Scale(-0.1))
    params = jnp.zeros((3, 3))
    state = opt.init(params)
    for g in map(jnp.asarray, grads):
        params, state = opt.step(g, state, params)
    np.testing.assert_allclose(params, expected, atol=1e-3)


def test_a_basis_by_kl_does_not_depend_on_the_scale():
    opt = soap(kl=True, precondition_frequency=1)
    grads = jr.normal(jr.key(0), (13, 3, 4))
    _, state = run(opt, grads)
    _, scaled = run(opt, 1e-5 * grads)
    for v, w in zip(state.basis, scaled.basis, strict=True):
        np.testing.assert_allclose(v, w, atol=1e-3)


def test_kl_without_factors_is_adam():
    """Sides above `max_precond_dim` have none."""
    grads = jr.normal(jr.key(0), (3, 3, 4))
    found, _ = run(soap(kl=True, max_precond_dim=2), grads)
    expected, _ = run(soap(max_precond_dim=2), grads)
    assert jnp.array_equal(jnp.stack(found), jnp.stack(expected))
