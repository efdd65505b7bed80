"""Shampoo and KL-Shampoo, beyond the laws and the formulas in their rows."""

import functools

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqopt

from ...parity.matrices import NUMBERS
from .programs import compiled_decompositions, decompositions, executed_decompositions


pytestmark = pytest.mark.slow


def shampoo(**arguments):
    return eqopt.ScaleByShampoo(weight_dimension_numbers=NUMBERS, **arguments)


def kl_shampoo(**arguments):
    return shampoo(graft=None, kl=True, **arguments)


def last_update(opt, grads):
    state, update, updates = opt.init(grads[0]), jax.jit(opt.update), grads[0]
    for g in grads:
        updates, state = update(g, state)
    return updates


FIRST_STEP = {
    "b1": 0.0,
    "b2": 1.0,
    "eps": 0.0,
    "graft": None,
    "precondition_frequency": 1,
}


@pytest.mark.parametrize("one_sided", [False, True])
@pytest.mark.parametrize("dtype", [jnp.float64, jnp.complex128])
@pytest.mark.parametrize("shape", [(4, 4), (3, 5), (5, 3)])
def test_the_first_update_is_orthogonal(shape, dtype, one_sided, x64):
    with x64():
        g = jr.normal(jr.key(0), shape, dtype)
        opt = shampoo(one_sided=one_sided, **FIRST_STEP)
        if not one_sided:  # roots must not enlarge the rounding of a zero eigenvalue
            opt = shampoo(**FIRST_STEP | {"eps": 1e-12})
        updates, _ = opt.update(g, opt.init(g))
        u, _, vh = np.linalg.svd(g, full_matrices=False)
        np.testing.assert_allclose(updates, u @ vh, atol=1e-5)


@pytest.mark.parametrize("graft", ["adam", "rmsprop", "adagrad", "sgd"])
def test_the_graft_determines_the_length(graft, x64):
    """Before the first roots, the direction is also the graft's."""
    with x64():
        grads = jr.normal(jr.key(0), (5, 4, 3))
        arguments = {"b1": 0.5, "graft": graft, "graft_b2": 0.9, "graft_eps": 0.1}
        early, late = (
            last_update(shampoo(start_preconditioning_step=n, **arguments), grads)
            for n in (6, 5)
        )
        np.testing.assert_allclose(
            jnp.linalg.norm(early), jnp.linalg.norm(late), rtol=1e-12
        )
        assert jnp.linalg.norm(early - late) > 0.1 * jnp.linalg.norm(early)
        if graft == "adam":
            adam = eqopt.ScaleByAdam(b1=0.5, b2=0.9, eps=0.1)
            np.testing.assert_allclose(early, last_update(adam, grads), rtol=1e-12)


def test_roots_that_are_not_finite_are_ignored():
    opt = shampoo(precondition_frequency=1)
    g = jr.normal(jr.key(0), (3, 3))
    _, state = opt.update(g, opt.init(g))
    _, new = opt.update(g.at[0, 0].set(jnp.nan), state)
    assert jnp.array_equal(new.roots[0], state.roots[0])


@pytest.mark.parametrize("kl", [False, True])
def test_zero_gradients_at_first(kl):
    """Updates for zero gradients are zero; the next gradient counts as the first."""
    opt = shampoo(kl=kl, precondition_frequency=1, b1=0.0, b2=0.9)
    zero, g = jnp.zeros((3, 4)), jr.normal(jr.key(0), (3, 4))
    updates, state = opt.update(zero, opt.init(zero))
    assert not updates.any()
    updates, _ = opt.update(g, state)
    assert jnp.isfinite(updates).all() and 0.5 < jnp.abs(updates).max() < 5


KL = {
    "Shampoo": functools.partial(kl_shampoo, b2=0.995, precondition_frequency=1),
    "SOAP": functools.partial(
        eqopt.ScaleBySOAP,
        shampoo_beta=0.995,
        precondition_frequency=1,
        kl=True,
        weight_dimension_numbers=NUMBERS,
    ),
}


@pytest.mark.parametrize("one_sided", [False, True])
@pytest.mark.parametrize("name", KL)
def test_kl_fits_the_covariance(name, one_sided, x64):
    """For samples $A Z B^T$, the factors fit the matrix normal distribution.

    With one factor, the other side counts as white.
    """
    opt = KL[name](one_sided=one_sided)
    with x64():
        rng = np.random.default_rng(0)
        a, b = np.diag([1, 2, 4.0]) @ rng.normal(size=(3, 3)), np.diag([3, 1.0])
        samples = a @ rng.normal(size=(3000, 3, 2)) @ b.T
        samples = jnp.asarray(samples)
        step = lambda state, g: (opt.update(g, state)[1], None)
        state, _ = jax.lax.scan(step, opt.init(samples[0]), samples)
        left, right = state.factors
        assert (left is None) == one_sided
        rows = np.mean(np.diag(a @ a.T)) * np.eye(3) if one_sided else a @ a.T
        expected = np.kron(rows, b @ b.T)
        found = np.kron(np.eye(3) if left is None else left, right)
        error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
        assert error < 0.06


@pytest.mark.parametrize("stagger", [False, True])
@pytest.mark.parametrize("kl", [False, True])
def test_decompositions_are_under_conditions(kl, stagger):
    """Each side takes an eigendecomposition; `kl` adds a QR one in two calls."""
    opt = shampoo(kl=kl, b2=0.9, stagger=stagger)
    params = [jnp.ones((3, 4)), jnp.ones((2, 4, 5))]
    arguments = params, opt.init(params)
    always, sometimes = decompositions(opt.update, *arguments)
    assert not always and "eigh" in sometimes
    if jax.default_backend() == "cpu":
        assert compiled_decompositions(opt.update, *arguments) == (0, 12 if kl else 4)


@pytest.mark.parametrize("kl", [False, True])
@pytest.mark.parametrize("stagger", [False, True])
def test_decompositions_at_run_time(stagger, kl, monkeypatch):
    """Two for each of three matrices from the third step on, at once or by turns."""
    opt = shampoo(
        precondition_frequency=3,
        start_preconditioning_step=3,
        b2=0.9,
        stagger=stagger,
        kl=kl,
    )
    side = 20 + 4 * stagger + 2 * kl
    params = [jnp.zeros((side, side + 1))] * 3
    counts = executed_decompositions(monkeypatch, opt, params, 8)
    later = [2] * 5 if stagger else [0, 0, 6, 0, 0]
    assert counts == [0, 0, 6, *later]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"b2": 1.0}, r"`b2` must be in \[0, 1\), but is 1"),
        ({"eps": 0.0}, r"`eps` must be in \(0, inf\), but is 0"),
    ],
)
def test_errors_of_kl(arguments, message):
    for make in (kl_shampoo, lambda **kwargs: eqopt.KLShampoo(0.1, **kwargs)):
        with pytest.raises(ValueError, match=message):
            make(**arguments)


def test_the_last_block_is_filled_up_with_zeros():
    """Which count in the means of `kl`: this makes the first updates longer."""
    grads = [*jr.normal(jr.key(0), (4, 3, 5))]
    found = last_update(kl_shampoo(block_size=3), grads)[:, 3:]
    blocks = [g[:, 3:] for g in grads]
    filled = [jnp.pad(g, ((0, 0), (0, 1))) for g in blocks]
    expected = last_update(kl_shampoo(), filled)[:, :2]
    np.testing.assert_allclose(found, expected, 1e-4, 1e-5)
    alone = last_update(kl_shampoo(), blocks)
    assert jnp.linalg.norm(found) > 1.2 * jnp.linalg.norm(alone)
