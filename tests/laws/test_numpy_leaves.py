"""Parameters and gradients may be NumPy arrays, with the same results as JAX arrays."""

import equinox as eqx
import jax
import numpy as np

from .registry import law
from .subjects import arrays, avals, grads_of, params_of


def of_numpy(tree):
    return jax.tree.map(np.array, tree)


@law()
def test_types(row):
    """NumPy arrays give the same types as JAX arrays."""
    opt, params = row(), params_of()
    grads = grads_of(params, 0)

    def run(grads, params):
        state = opt.init(params)
        new = opt.step(grads, state, params)
        return state, new, opt.update(grads, state, params), opt.eval_params(*new[::-1])

    expected, found = (
        # As constants: as arguments, NumPy arrays would be traced like JAX arrays.
        eqx.filter_eval_shape(lambda tree=tree: run(*tree))
        for tree in ((grads, params), (of_numpy(grads), of_numpy(params)))
    )
    assert avals(found) == avals(expected)
    assert jax.tree.structure(found) == jax.tree.structure(expected)


@law()
def test_init_copies(row):
    """The state has the same values, in JAX arrays with their own memory."""
    opt, params = row(), params_of()
    given = of_numpy(params)
    state, expected = opt.init(given), opt.init(params)
    for x in jax.tree.leaves(given):
        x.fill(np.nan)
    assert jax.tree.structure(state) == jax.tree.structure(expected)
    for x, y in zip(arrays(state), arrays(expected), strict=True):
        assert type(x) is type(y) and jax.typeof(x) == jax.typeof(y)
        np.testing.assert_array_equal(x, y)
