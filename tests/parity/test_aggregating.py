"""Means and variances of per-element gradients, step by step against Optax."""

import jax
import jax.random as jr
import numpy as np
import optax
import pytest
from optax.experimental import aggregating as theirs

import eqopt
from eqopt import aggregating as ours

from ..interpreter import interpreted


# Optax does not run under strict promotion.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("standard_promotion")]


def tree_of(key, shapes, batch=(), axis=0):
    """A random tree; arrays have the axes of `batch` from `axis` on."""

    def leaf(key, shape):
        at = axis % (len(shape) + 1)
        return jr.normal(key, (*shape[:at], *batch, *shape[at:]))

    keys = jr.split(key, len(shapes))
    leaves = [leaf(*pair) for pair in zip(keys, shapes, strict=True)]
    return {"first": leaves[0], "rest": [tuple(leaves[1:]), None]}


def same(left, right, rtol=1e-5, atol=1e-6):
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol, atol)


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("decay", [0.0, 0.9])
@pytest.mark.parametrize(
    ("axes", "batch", "at"), [(0, (4,), 0), (-1, (3,), -1), ((0, 1), (2, 3), 0)]
)
def test_mean_and_variance(steps, decay, axes, batch, at):
    """Updates, and what is tracked, in each of 11 calls."""
    shapes = [(3, 4), (4,), (), (2, 3, 2)]
    params = tree_of(jr.key(0), shapes)
    opt = ours.add_mean_variance_to_opt(eqopt.Adam(0.1), decay, axes, steps)
    other = theirs.add_mean_variance_to_opt(optax.adam(0.1), decay, axes, steps)
    state, their_state = opt.init(params), other.init(params)
    update, their_update = interpreted(opt.update), interpreted(other.update)
    for i in range(11):
        grads = tree_of(jr.key(i + 1), shapes, batch, at)
        updates, state = update(grads, state, params)
        their_updates, their_state = their_update(grads, their_state, params)
        same(updates, their_updates)
        if i + 1 >= steps:  # before, Optax has 0 / 0
            same(
                ours.get_unbiased_mean_and_variance_ema(state),
                theirs.get_unbiased_mean_and_variance_ema(their_state),
            )
        if steps > 1:
            here, there = state[1], their_state[1]
            assert here.micro_step == there.micro_step
            assert here.ready == there.ready
            if not here.ready:  # then Optax's are zeros
                same(here.mean_grads, there.mean_grads)
                same(here.sum_sq_diff_grads, there.sum_sq_diff_grads)
