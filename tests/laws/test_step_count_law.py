"""Every optimizer says how many steps it has taken."""

import jax
import jax.numpy as jnp
import pytest

import eqopt
from eqopt import AbstractOptimizer

from .registry import REGISTRY
from .subjects import params_of, train


OPTIMIZERS = [row for row in REGISTRY if issubclass(row.subject, AbstractOptimizer)]


@pytest.mark.parametrize("row", OPTIMIZERS, ids=lambda row: row.name)
@pytest.mark.costly
def test_every_optimizer_counts(row):
    """And a count that is set leaves the kind of the state as it is."""

    def states():
        state = row().init(params_of())
        changed = eqopt.tree.set(state, all=True, count=3)
        return state, changed, eqopt.tree.step_count(state)

    state, changed, count = jax.eval_shape(states)
    assert (count.shape, count.dtype) == ((), jnp.int32)
    assert changed == state


@pytest.mark.slow
@pytest.mark.parametrize("row", OPTIMIZERS, ids=lambda row: row.name)
def test_counts_are_right(row):
    _, state = train(row(), params_of(), 3)
    assert eqopt.tree.step_count(state) == 3
