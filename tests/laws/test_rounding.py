"""Law 5 in chains: updates are rounded once, when they are returned."""

import jax
import jax.numpy as jnp
import pytest

import eqopt

from ..interpreter import interpreted
from .subjects import assert_equal, grads_of, params_of
from .test_laws import law


@law
@pytest.mark.costly
def test_nothing_is_rounded_between_parts(row):
    """In half precision, the results are those in float32, rounded at the end."""
    opt = eqopt.Chain(eqopt.Scale(0.3), row(), eqopt.Scale(0.7))
    params = params_of(jnp.bfloat16)
    state, grads = opt.init(params), grads_of(params, 0)
    # Not compiled: XLA might remove a rounding from the program.
    update = interpreted(opt.update)
    updates, new = update(grads, state, params)
    wide = jax.tree.map(lambda g: g.astype(jnp.float32), grads)
    expected, expected_new = update(wide, state, params)
    rounded = jax.tree.map(lambda u, g: u.astype(g.dtype), expected, grads)
    assert_equal((updates, new), (rounded, expected_new))
