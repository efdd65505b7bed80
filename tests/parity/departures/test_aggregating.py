"""Where aggregators depart from Optax on purpose, asserted on both sides."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from optax.experimental import aggregating as theirs

import eqopt
from eqopt import aggregating as ours

from .steps import last


pytestmark = pytest.mark.usefixtures("standard_promotion")


def test_calls_of_different_sizes():
    """The mean is over elements; in Optax, over calls."""
    grads = [jnp.ones((3, 2)), 5 * jnp.ones((1, 2))]
    params = jnp.zeros(2)
    here, _ = last(ours.AverageIncrementallyUpdates(0, 2), grads, params)
    there, _ = last(theirs.average_incrementally_updates(0, 2), grads, params)
    np.testing.assert_allclose(here, 2.0)
    np.testing.assert_allclose(there, 3.0)
    _, state = last(ours.PerElementMeanAndSumSqDiffGrads(0, 2), grads, params)
    np.testing.assert_allclose(state.sum_sq_diff_grads, 3 + 9)
    assert state.sample_size == 4
    there, _ = last(
        theirs.get_per_element_mean_and_sum_sq_diff_grads(0, 2), grads, params
    )
    assert there[1]["sample_size"] == 2


def test_complex_variance():
    grads = jnp.array([[1 + 1j], [1 - 1j]])
    opt = ours.PerElementMeanAndSumSqDiffGrads()
    _, found, _ = opt.aggregate(grads, None, grads[0])
    np.testing.assert_allclose(found["sum_sq_diff_grads"], 2.0)
    other = theirs.get_per_element_mean_and_sum_sq_diff_grads()
    there, _ = last(other, [grads], grads[0])
    np.testing.assert_allclose(there[1]["sum_sq_diff_grads"], -2.0)


def test_whole_models():
    """`lax.cond` of Optax takes the parameters, and those must be arrays."""
    params = {"w": jnp.ones(2), "activation": jnp.tanh}
    grads = {"w": jnp.ones((3, 2)), "activation": None}
    here = ours.add_mean_variance_to_opt(eqopt.SGD(0.1))
    updates, _ = last(here, [grads], params)
    np.testing.assert_allclose(updates["w"], -0.1)
    there = theirs.add_mean_variance_to_opt(optax.sgd(0.1))
    with pytest.raises(TypeError):
        last(there, [grads], params)


def test_before_the_first_step():
    params = jnp.ones(2)
    state = ours.add_mean_variance_to_opt(eqopt.SGD(0.1)).init(params)
    for tree in ours.get_unbiased_mean_and_variance_ema(state):
        assert (tree == 0).all()
    state = theirs.add_mean_variance_to_opt(optax.sgd(0.1)).init(params)
    for tree in theirs.get_unbiased_mean_and_variance_ema(state):
        assert jnp.isnan(tree).all()


def test_half_precision_is_accumulated_in_float32():
    """The state of Optax changes its dtype, and its `process` raises an error."""
    params = jnp.ones(2, jnp.bfloat16)
    grads = [jr.normal(jr.key(i), (4, 2)).astype(jnp.bfloat16) for i in range(2)]
    dtypes = lambda state: [x.dtype for x in jax.tree.leaves(state)]
    here = ours.PerElementMeanAndSumSqDiffGrads(0, 3)
    _, state = last(here, grads, params)
    assert dtypes(state) == dtypes(here.init(params))
    assert state.mean_grads.dtype == jnp.float32
    there = theirs.get_per_element_mean_and_sum_sq_diff_grads(0, 3)
    _, state = last(there, grads, params)
    assert dtypes(state) != dtypes(there.init(params))
    last(ours.add_mean_variance_to_opt(eqopt.SGD(0.1), 0.9, 0, 2), grads, params)
    there = theirs.add_mean_variance_to_opt(optax.sgd(0.1), 0.9, 0, 2)
    with pytest.raises(TypeError, match="cond branches"):
        last(there, grads, params)
