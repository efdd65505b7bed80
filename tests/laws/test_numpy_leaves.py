"""Parameters and gradients may be arrays of NumPy: they are those of JAX."""

import equinox as eqx
import jax
import numpy as np

from .registry import law
from .subjects import arrays, avals, grads_of, params_of


def of_numpy(tree):
    return jax.tree.map(np.array, tree)


@law()
def test_types(row):
    """What comes out is of the same types, traced or not."""
    opt, params = row(), params_of()
    grads = grads_of(params, 0)

    def run(grads, params):
        state = opt.init(params)
        new = opt.step(grads, state, params)
        return state, new, opt.update(grads, state, params), opt.eval_params(*new[::-1])

    expected, found = (
        # As constants: arrays of NumPy that go into a trace are none inside.
        eqx.filter_eval_shape(lambda tree=tree: run(*tree))
        for tree in ((grads, params), (of_numpy(grads), of_numpy(params)))
    )
    assert avals(found) == avals(expected)
    assert jax.tree.structure(found) == jax.tree.structure(expected)


@law()
def test_init_copies(row):
    """The state holds the same values, as arrays of JAX, and in memory of its own."""
    opt, params = row(), params_of()
    given = of_numpy(params)
    state, expected = opt.init(given), opt.init(params)
    for x in jax.tree.leaves(given):
        x.fill(np.nan)
    assert jax.tree.structure(state) == jax.tree.structure(expected)
    for x, y in zip(arrays(state), arrays(expected), strict=True):
        assert type(x) is type(y) and jax.typeof(x) == jax.typeof(y)
        np.testing.assert_array_equal(x, y)
