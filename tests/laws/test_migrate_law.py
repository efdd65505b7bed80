"""`eqopt.tree.migrate` over the registry: no state loses a bit."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import eqopt
from eqopt.tree import migrate, migration_plan

from .registry import law
from .subjects import moment


def assert_identical(new, old):
    assert jax.tree.structure(new) == jax.tree.structure(old)
    for x, y in zip(jax.tree.leaves(new), jax.tree.leaves(old), strict=True):
        assert jax.typeof(x) == jax.typeof(y)
        assert x.tobytes() == y.tobytes()


@law()
def test_the_same_optimizer_gets_the_same_state(row):
    opt = row()
    params, state = moment(row, 2)
    assert_identical(migrate(opt, state, params), state)
    plan = migration_plan(opt, eqx.filter_eval_shape(opt.init, params), params)
    assert all(part.taken_from == part.path for part in plan.parts)
    assert not any(part.initialised for part in plan.parts) and not plan.dropped


@pytest.mark.slow
@law()
def test_a_chain_takes_the_whole_state(row):
    """At other positions, nothing is initialised, or an error asks for the positions."""
    opt = eqopt.Chain(eqopt.Clip(jnp.inf), row())
    params, state = moment(row, 2)
    new = migrate(opt, state, params, take={"[1]": ""} if has_values(state) else {})
    assert_identical(new, (None, state))
    try:
        guessed = migrate(opt, state, params)
    except ValueError as error:
        assert "take={" in str(error)
    else:
        assert_identical(guessed, new)


def has_values(state):
    return bool(jax.tree.leaves(state))
