"""Correlated noise is what its coefficients say, and so is its sensitivity.

The numbers were computed with the formulas of the papers in NumPy. The library
jax_privacy computes the same.
"""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt


STEPS = 16
KINDS = {"bands": False, "inverse": True}
# For each kind and for all coefficients: the largest and the mean variance of prefix
# sums; the sensitivity for one participation, and for every fourth step.
TABLE = {
    ("independent", False, 1): (16, 8.5, 1, 2),
    ("bands", False, 4): (4.09685935, 2.53194045, 1.21995133, 2.43990266),
    ("inverse", True, 4): (2.66015625, 1.9128418, 1.27364066, 3.10941325),
    ("full", False, 16): (1.94387885, 1.66087621, 1.39423056, 3.71522086),
    ("full inverse", True, 16): (1.94387885, 1.66087621, 1.39423056, 3.71522086),
}


def noise_of(opt, steps=STEPS, params=None, changed=lambda state: state):
    """The noise of each step; `changed` is applied to the state in between."""
    params = jnp.zeros(64) if params is None else params
    zeros = jax.tree.map(jnp.zeros_like, params)
    state, update, found = opt.init(params), jax.jit(opt.update), []
    for _ in range(steps):
        updates, state = update(zeros, changed(state))
        found.append(updates)
    return np.stack(found)


def release(coefficients, inverse, steps=STEPS):
    """The matrix by which independent noise becomes the noise: the inverse of C."""
    z = noise_of(eqopt.AddCorrelatedNoise(1.0, (1.0,), 0), steps)
    x = noise_of(eqopt.AddCorrelatedNoise(1.0, coefficients, 0, inverse), steps)
    return np.linalg.lstsq(z.T.astype(float), x.T.astype(float))[0].T


@pytest.mark.parametrize(("name", "inverse", "bands"), TABLE)
@pytest.mark.costly
def test_errors_and_sensitivities(name, inverse, bands):
    coefficients = eqopt.square_root_coefficients(bands, inverse)
    sums = np.tril(np.ones((STEPS, STEPS))) @ release(coefficients, inverse)
    variances = np.sum(sums**2, axis=1)
    found = variances.max(), variances.mean()
    np.testing.assert_allclose(found, TABLE[name, inverse, bands][:2], 1e-5)
    found = [
        eqopt.correlated_noise_sensitivity(coefficients, STEPS, s, inverse=inverse)
        for s in (STEPS, 4)
    ]
    np.testing.assert_allclose(found, TABLE[name, inverse, bands][2:], 1e-8)


def matrix_of(coefficients, steps):
    shifted = [np.eye(steps, k=-k) * c for k, c in enumerate(coefficients)]
    return np.sum(shifted, axis=0)


def searched(matrix, separation, participations):
    """The sensitivity by a search over all sets of steps, and all signs."""
    steps, found = len(matrix), 0.0
    for k in range(1, participations + 1):
        for chosen in itertools.combinations(range(steps), k):
            if min(np.diff(chosen), default=separation) >= separation:
                columns = matrix[:, chosen]
                signs = itertools.product((1, -1), repeat=k)
                found = max(found, *(np.linalg.norm(columns @ x) for x in signs))
    return found


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize(("separation", "participations"), [(1, 3), (2, 4), (3, 2)])
def test_sensitivities_are_those_of_a_search(inverse, separation, participations):
    coefficients = eqopt.square_root_coefficients(4, inverse)
    matrix = matrix_of(coefficients, 8)
    matrix = np.linalg.inv(matrix) if inverse else matrix
    arguments = 8, separation, participations, inverse
    found = eqopt.correlated_noise_sensitivity(coefficients, *arguments)
    np.testing.assert_allclose(found, searched(matrix, separation, participations))


def test_sensitivities_of_other_coefficients():
    """Exact if columns do not overlap, and otherwise a bound."""
    found = eqopt.correlated_noise_sensitivity
    assert found((1.0, -2.0, 2.0), 9, 9) == 3
    assert found((1.0, -2.0, 2.0), 9, 3) == pytest.approx(27**0.5)
    assert found((1.0, -2.0, 2.0), 2, 9) == pytest.approx(5**0.5)  # after two steps
    assert found((1.0, -2.0, 2.0), 9, 1, participations=1) == 3
    for c in ((1.0, -2.0, 0.5), (0.5, 1.0, 1.0), (1.0, 0.0, 1.0)):
        for separation, participations in ((2, 4), (1, 2)):
            exact = searched(matrix_of(c, 7), separation, participations)
            assert exact <= found(c, 7, separation, participations) <= 2 * exact


@pytest.mark.parametrize("inverse", KINDS.values(), ids=KINDS)
def test_each_parameter_has_its_own_past(inverse):
    """After a pause, the noise of a parameter continues where it stopped."""
    coefficients = (2.0, 0.5, -0.25)
    opt = eqopt.AddCorrelatedNoise(0.3, coefficients, 0, inverse)
    zeros = {"a": jnp.zeros(64), "b": jnp.zeros(64)}
    independent = eqopt.AddCorrelatedNoise(1.0, (1.0,), 0)
    state, other, x, z = opt.init(zeros), independent.init(zeros), [], []
    for step in range(6):
        updates = {**zeros, "b": None} if step in (1, 2) else zeros
        noise, state = opt.update(updates, state)
        plain, other = independent.update(updates, other)
        if noise["b"] is not None:
            x.append(noise["b"])
            z.append(plain["b"])
    matrix = 0.3 * matrix_of(coefficients, 4)
    expected = matrix @ z if inverse else np.linalg.solve(matrix, 0.09 * np.array(z))
    np.testing.assert_allclose(x, expected, rtol=1e-4, atol=1e-5)


def test_half_precision_and_complex_numbers():
    opt = eqopt.AddCorrelatedNoise(1.0, (1.0, 0.5), 0)
    state = opt.init(jnp.zeros(20000, jnp.bfloat16))
    assert state.past.dtype == jnp.float32
    noise = noise_of(opt, 1, jnp.zeros(20000, jnp.complex64))
    for part in (noise.real, noise.imag):
        assert abs(part.var() - 1) < 4 * np.sqrt(2 / 20000)


def test_an_array_is_a_sequence():
    tuple_ = eqopt.AddCorrelatedNoise(1.0, (1.0, 0.5), 0)
    for array in (np.array([1.0, 0.5]), jnp.array([1.0, 0.5])):
        assert eqx.tree_equal(eqopt.AddCorrelatedNoise(1.0, array, 0), tuple_)


@pytest.mark.parametrize(
    "coefficients", [(), [0.0, 1.0], (1.0, float("inf")), "abc", np.ones((2, 2)), 1.0]
)
def test_wrong_coefficients(coefficients):
    for make in (
        lambda: eqopt.AddCorrelatedNoise(1.0, coefficients, 0),
        lambda: eqopt.correlated_noise_sensitivity(coefficients, 4, 2),
    ):
        with pytest.raises((ValueError, TypeError), match="coefficients"):
            make()


def test_a_state_of_other_coefficients():
    state = eqopt.AddCorrelatedNoise(1.0, (1.0, 0.5, 0.25), 0).init(jnp.zeros(3))
    opt = eqopt.AddCorrelatedNoise(1.0, (1.0, 0.5), 0)
    with pytest.raises(ValueError, match="The state was made for 3 coef"):
        opt.update(jnp.zeros(3), state)
