"""What the laws and the formulas in the rows do not say of SOAP."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqopt

from ...parity.matrices import NUMBERS
from .programs import (
    compiled_decompositions,
    decompositions,
    executed_decompositions,
)


def run(opt, grads, params=None):
    """All updates, and the last state."""
    state = opt.init(grads[0] if params is None else params)
    update, seen = eqx.filter_jit(opt.update), []
    for g in grads:
        updates, state = update(g, state)
        seen.append(updates)
    return seen, state


def normal(steps, *shape, seed=0):
    return np.random.default_rng(seed).normal(size=(steps, *shape))


def orthogonal(n, seed):
    return np.linalg.qr(normal(n, n, seed=seed))[0]


def soap(**arguments):
    return eqopt.ScaleBySOAP(weight_dimension_numbers=NUMBERS, **arguments)


@pytest.mark.parametrize("kl", [False, True])
def test_rotated_gradients_give_rotated_updates(kl, x64):
    opt = soap(precondition_frequency=2, kl=kl)
    grads, u, v = normal(8, 4, 4), orthogonal(4, 1), orthogonal(4, 2)
    with x64():
        plain, _ = run(opt, [jnp.asarray(g) for g in grads])
        turned, _ = run(opt, [jnp.asarray(u @ g @ v.T) for g in grads])
        for a, b in zip(plain, turned, strict=True):
            np.testing.assert_allclose(u @ a @ v.T, b, rtol=1e-6, atol=1e-8)


def test_without_a_preconditioner_it_is_adam_one_step_later(x64):
    """But for `eps`, which is beside the second moment before it is corrected."""
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


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.complex64])
def test_bases_stay_orthogonal(dtype):
    grads = jr.normal(jr.key(0), (20, 5, 3), dtype)
    _, state = run(soap(precondition_frequency=1), grads)
    for q in state.basis:
        np.testing.assert_allclose(jnp.conj(q.T) @ q, np.eye(len(q)), atol=1e-5)


@pytest.mark.parametrize("stagger", [False, True])
def test_turns(stagger):
    """Staggered, one of four matrices has a new basis in each of four steps."""
    opt = soap(precondition_frequency=4, stagger=stagger)
    params = [jnp.zeros((3, 3)), jnp.zeros(2), *[jnp.zeros((2, 3))] * 3]
    state, update = opt.init(params), jax.jit(opt.update)
    refreshed = []
    for t in range(13):
        key = jr.key(t)
        grads = jax.tree.map(lambda p, key=key: jr.normal(key, p.shape), params)
        _, new = update(grads, state)
        pairs = [(state.basis[i][0], new.basis[i][0]) for i in (0, 2, 3, 4)]
        refreshed.append([not jnp.array_equal(a, b) for a, b in pairs])
        state = new
    refreshed = np.array(refreshed)
    assert refreshed[0].all()
    if stagger:
        assert (refreshed[1:].sum(1) == 1).all()
        assert (refreshed[1:].reshape(3, 4, 4).sum(1) == 1).all()
    else:
        assert (refreshed[1:].sum(1) == [0, 0, 0, 4] * 3).all()


@pytest.mark.parametrize("skip_first", [False, True])
@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4)])
def test_decompositions_are_under_conditions(shape, skip_first):
    opt = soap(skip_first=skip_first, stagger=True)
    params = jnp.ones(shape)
    arguments = params, opt.init(params)
    always, sometimes = decompositions(opt.update, *arguments)
    assert not always and "eigh" in sometimes and len(sometimes) > 1
    if jax.default_backend() == "cpu":
        always, sometimes = compiled_decompositions(opt.update, *arguments)
        assert always == 0 and sometimes > 0


@pytest.mark.parametrize("stagger", [False, True])
def test_decompositions_at_run_time(stagger, monkeypatch):
    """Two for each of three matrices, at first and every three steps, or by turns."""
    opt = soap(precondition_frequency=3, stagger=stagger)
    side = 30 + 2 * stagger
    params = [jnp.zeros((side, side + 1))] * 3
    counts = executed_decompositions(monkeypatch, opt, params, 7)
    assert counts == [6, *([2] * 6 if stagger else [0, 0, 6] * 2)]


def test_decompositions_are_seen():
    x = jnp.eye(3)
    assert decompositions(jnp.linalg.eigh, x)[0] == {"eigh"}
    if jax.default_backend() == "cpu":
        always, sometimes = compiled_decompositions(jnp.linalg.eigh, x)
        assert always > 0 and sometimes == 0


def test_blocks_are_matrices():
    grads = jr.normal(jr.key(0), (6, 4, 6))
    arguments = {"precondition_frequency": 2, "kl": True}
    updates, state = run(soap(block_size=3, **arguments), grads)
    assert state.factors[0].shape == (2, 2, 2, 2)
    assert state.factors[1].shape == (2, 2, 3, 3)
    for i in (slice(0, 2), slice(2, 4)):
        for j in (slice(0, 3), slice(3, 6)):
            own, _ = run(soap(**arguments), [g[i, j] for g in grads])
            for whole, block in zip(updates, own, strict=True):
                np.testing.assert_allclose(whole[i, j], block, rtol=1e-3, atol=1e-4)


def test_stacked_layers_are_matrices():
    grads = jr.normal(jr.key(0), (6, 3, 4, 5))
    opt = soap(precondition_frequency=2, one_sided=True)
    updates, state = run(opt, grads)
    assert state.factors[0].shape == (3, 4, 4) and state.factors[1] is None
    for i in range(3):
        own, _ = run(opt, grads[:, i])
        for whole, layer in zip(updates, own, strict=True):
            np.testing.assert_allclose(whole[i], layer, rtol=1e-3, atol=1e-4)


def test_frozen_parts():
    """Where there is no update, nothing changes; all else is as without it."""
    grads = jr.normal(jr.key(0), (6, 3, 4))
    opt = soap(precondition_frequency=2)
    params = {"trained": grads[0], "frozen": jnp.ones((2, 3))}
    frozen = [{"trained": g, "frozen": None} for g in grads]
    updates, state = run(opt, frozen, params)
    alone, own = run(opt, grads)
    assert all(u["frozen"] is None for u in updates)
    for u, expected in zip(updates, alone, strict=True):
        np.testing.assert_allclose(u["trained"], expected, rtol=1e-5, atol=1e-6)
    assert jnp.array_equal(state.factors["trained"][0], own.factors[0])
    start = opt.init(params)
    for new, old in ((state.mu, start.mu), (state.basis, start.basis)):
        assert eqx.tree_equal(new["frozen"], old["frozen"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"b1": 1.0}, r"`b1` must be in \[0, 1\), but is 1"),
        ({"b2": -0.1}, r"`b2` must be in \[0, 1\), but is -0.1"),
        ({"shampoo_beta": 1.0}, r"`shampoo_beta` must be in \[0, 1\), but is 1"),
        ({"eps": -1.0}, r"`eps` must be in \[0, inf\), but is -1"),
        (
            {"precondition_frequency": 0},
            "`precondition_frequency` must be an integer of",
        ),
        ({"max_precond_dim": -1}, "`max_precond_dim` must be an integer of at least 0"),
        ({"block_size": 0}, "`block_size` must be an integer of at least 1, but is 0"),
    ],
)
def test_errors(arguments, message):
    for make in (eqopt.ScaleBySOAP, lambda **kwargs: eqopt.SOAP(0.1, **kwargs)):
        with pytest.raises(ValueError, match=message):
            make(**arguments)
