"""Law: a huge or tiny gradient that is finite gives a finite step, and no NaN for later.

In float32, the square of 1e25 is infinite, and the square of 1e-25 is zero. An infinite
second moment is allowed, as it makes later steps zero.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt

from .registry import law
from .subjects import all_finite, arrays, assert_equal, both, grads_of, params_of, step


QUICK = {"AdaClipGN", "Adafactor", "Mechanic(SGD)", "ScaleByAdam", "ScaleByPSGDKron"}


def all_of_size(params, i, size):
    """Gradients whose elements all have this modulus."""
    signs = lambda g: jnp.asarray(np.where(np.asarray(g) < 0, -size, size), g.dtype)
    return jax.tree.map(signs, grads_of(params, i))


def one_of_size(params, i, size):
    """Gradients as usual, except for one element of the matrix with this modulus."""
    grads = grads_of(params, i)
    matrix = np.array(grads["matrix"])
    matrix[1, 0] = size
    return {**grads, "matrix": jnp.asarray(matrix)}


def as_usual(params, i, size):
    return grads_of(params, i)


@pytest.mark.parametrize("size", [1e25, 1e-25])
@law(QUICK)
def test_finite_gradients_give_finite_steps(row, size):
    """Both as the first gradients, and after an ordinary one."""
    opt = row()
    for given in (
        [all_of_size, all_of_size, as_usual],
        [as_usual, one_of_size, as_usual],
    ):
        params = params_of()
        state = opt.init(params)
        for i, grads in enumerate(given):
            updated, (params, state) = both(opt, grads(params, i, size), state, params)
            assert all_finite((updated[0], params)), f"step {i} of {given}"
            assert not has_nan((updated[1], state)), f"step {i} of {given}"


def has_nan(tree):
    numbers = [x for x in arrays(tree) if jnp.issubdtype(x.dtype, jnp.inexact)]
    return any(np.isnan(np.asarray(x)).any() for x in numbers)


MATRIX = jnp.asarray([[1.0, -2.0], [0.5, 3.0], [-1.0, 0.25]])
HUGE = 1e25 * MATRIX


@pytest.mark.parametrize(
    "opt",
    [
        eqopt.ScaleByShampoo(precondition_frequency=1),
        eqopt.ScaleByShampoo(precondition_frequency=1, kl=True),
        eqopt.ScaleBySOAP(precondition_frequency=1),
        eqopt.ScaleBySOAP(precondition_frequency=1, kl=True, one_sided=True),
    ],
    ids=["Shampoo", "KL-Shampoo", "SOAP", "one-sided KL-SOAP"],
)
@pytest.mark.parametrize("first", [0, 2])
def test_a_huge_gradient_counts_as_zero(opt, first):
    """The preconditioner, the moments and the update ignore it."""
    params, state = MATRIX, opt.init(MATRIX)
    for _ in range(first):
        params, state = step(opt, MATRIX, state, params)
    assert_equal(step(opt, HUGE, state, params), step(opt, 0 * HUGE, state, params))


@pytest.mark.parametrize("size", [1e10, 1e25])
def test_a_huge_gradient_does_not_spoil_the_fit(size):
    """Later updates are neither zero nor NaN."""
    opt = eqopt.ScaleByPSGDKron(b1=0.0)
    params, state = MATRIX, opt.init(MATRIX)
    for g in (MATRIX, MATRIX, size * MATRIX, MATRIX):
        last = params
        params, state = step(opt, g, state, params)
    assert all_finite(state)
    assert 0 < float(eqopt.tree.norm(params - last)) < 5


def test_a_spike_has_the_norm_of_other_updates():
    opt = eqopt.AdaClipGN()
    params, state = MATRIX, opt.init(MATRIX)
    for g in (MATRIX, HUGE, MATRIX, 1e-25 * MATRIX):
        updates, state = both(opt, g, state, params)[0]
        assert all_finite(state)
        assert float(eqopt.tree.norm(updates)) < 1.5
        if g is HUGE:
            assert float(eqopt.tree.norm(updates)) > 0.5


@pytest.mark.parametrize(
    "opt",
    [
        eqopt.KeepNorm(),
        eqopt.KeepNorm("initial"),
        eqopt.KeepNorm(2.0, per="row"),
        eqopt.RadialBrake(),
        eqopt.RadialBrake(of="component"),
        eqopt.RelativeUpdate(),
        eqopt.ClipByGlobalNorm(1.0),
        eqopt.ScaleByRowRMS(),
        eqopt.Orthogonalize(row_normalize=True),
        eqopt.Mechanic(eqopt.SGD(1.0)),
    ],
    ids=lambda opt: type(opt).__name__,
)
def test_no_step_where_a_norm_overflows(opt):
    """But an infinite gradient is not hidden: it gives a NaN."""
    state = opt.init(MATRIX)
    (updates, _), _ = both(opt, HUGE, state, MATRIX)
    assert not np.any(updates)
    (updates, _), _ = both(opt, MATRIX.at[1, 1].set(jnp.inf), state, MATRIX)
    assert np.isnan(updates[1, 1])


def test_norms_of_huge_matrices():
    """An ordinary gradient of such a matrix gives a finite update."""
    for opt in (
        eqopt.RelativeUpdate(),
        eqopt.UpdateNormFloor(),
        eqopt.ScaleByParamBlockNorm(),
        eqopt.ScaleByParamBlockRMS(),
        eqopt.RadialBrake(),
        eqopt.KeepNorm(),
    ):
        (updates, _), _ = both(opt, MATRIX, opt.init(HUGE), HUGE)
        assert all_finite(updates)
