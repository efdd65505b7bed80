"""Law 5 in chains: updates are rounded once, where they leave."""

import jax
import jax.numpy as jnp

import eqopt

from ..interpreter import interpreted
from .subjects import assert_equal, grads_of, params_of
from .test_laws import law


@law
def test_nothing_is_rounded_between_parts(row):
    """Half of the precision comes in and goes out; in between it is as if all did."""
    opt = eqopt.Chain(eqopt.Scale(0.3), row(), eqopt.Scale(0.7))
    params = params_of(jnp.bfloat16)
    state, grads = opt.init(params), grads_of(params, 0)
    # Not compiled: XLA might leave out a rounding that is in the program.
    update = interpreted(opt.update)
    updates, new = update(grads, state, params)
    wide = jax.tree.map(lambda g: g.astype(jnp.float32), grads)
    expected, expected_new = update(wide, state, params)
    rounded = jax.tree.map(lambda u, g: u.astype(g.dtype), expected, grads)
    assert_equal((updates, new), (rounded, expected_new))
