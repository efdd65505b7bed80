"""In large arrays, minima and maxima of XLA ignore NaNs on a CPU, but methods do not.

A NaN that is ignored would leave a state that looks sound, but is not.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import pytest

from .registry import law


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
