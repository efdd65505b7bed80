"""What huge gradients do in some methods, in addition to the law in `eqopt.testing`.

In float32, the square of 1e25 is infinite, and the square of 1e-25 is zero. An infinite
second moment is allowed, as it makes later steps zero.

In large arrays, minima and maxima of XLA ignore NaNs on a CPU, but no method may. A NaN
that is ignored would leave a state that looks sound, but is not.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqopt

from .registry import law
from .subjects import all_finite, assert_equal, both, step


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
@pytest.mark.costly
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
@pytest.mark.costly
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


@law({"ScaleByAdamP"})
@pytest.mark.costly
def test_a_nan_leaves_the_same_traces(row):
    """The same arrays of the state have one as with a small parameter."""
    opt, small, large = row(), _tree((4, 3)), _tree((128, 64))
    run = lambda tree: opt.step(tree, opt.init(tree), tree)
    program = str(
        jax.make_jaxpr(lambda tree: eqx.filter(run(tree), eqx.is_array))(small)
    )
    if "reduce_max" in program or "reduce_min" in program:
        assert _traces(run, large) == _traces(run, small)


def _tree(shape):
    matrix, vector = jr.normal(jr.key(0), shape), jr.normal(jr.key(1), shape[:1])
    return {"matrix": matrix.at[2, 1].set(jnp.nan), "vector": vector}


def _traces(run, tree):
    arrays = eqx.filter(eqx.filter_jit(run)(tree), eqx.is_inexact_array)
    return [bool(jnp.isnan(x).any()) for x in jax.tree.leaves(arrays)]
