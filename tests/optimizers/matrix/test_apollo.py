"""APOLLO, beyond the laws and the comparison by hand."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqopt

from ...parity.matrices import NUMBERS


def scale_by_apollo(rank, **arguments):
    arguments = {"max_growth": None, "weight_dimension_numbers": NUMBERS, **arguments}
    return eqopt.ScaleByAPOLLO(rank, **arguments)


def moved(opt, grads):
    state, updates = opt.init(grads[0]), []
    for g in grads:
        u, state = opt.update(g, state)
        updates.append(u)
    return updates, state


@pytest.mark.slow
def test_each_matrix_has_another_projection():
    """In a stack, and in other leaves."""
    g = jr.normal(jr.key(0), (4, 6))
    ((stack, *others),), state = moved(scale_by_apollo(2), [[jnp.stack([g, g]), g, g]])
    assert state.mu[0][0].shape == (2, 2, 6) and state.norm[0].shape == (2, 1, 1)
    assert not np.allclose(*stack) and not np.allclose(*others)


@pytest.mark.parametrize("proj", ["random", "svd"])
def test_state(proj):
    state = eqopt.APOLLO(0.1, 2, proj=proj).init({"w": jnp.zeros((8, 5))})
    sizes = [x.size for x in jax.tree.leaves(eqopt.tree.get(state, "projector"))]
    assert sizes == ([] if proj == "random" else [10])
    mini = eqopt.ScaleByAPOLLO(1, scale_type="tensor").init(jnp.zeros((100, 100)))
    assert sum(x.size for x in jax.tree.leaves(mini)) == 2 * 100 + 2


def test_a_complex_gradient_of_rank_one():
    """It has the norm of its projection, and elements of the first Adam step are 1."""
    left, right = jr.normal(jr.key(0), (2, 6), jnp.complex64)
    g = jnp.outer(left[:4], right)
    (u,), _ = moved(scale_by_apollo(1, proj="svd"), [g])
    np.testing.assert_allclose(jnp.linalg.norm(u, axis=0), 1, rtol=1e-4)
