"""What all methods for matrices share: gradients of zero, and of low rank."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt

from ...interpreter import interpreted
from ...methods import BY_FAMILY
from ...parity.matrices import NUMBERS


pytestmark = pytest.mark.slow

BLOCKS = {
    "Orthogonalize": eqopt.Orthogonalize(),
    "Orthogonalize, normalised": eqopt.Orthogonalize(
        row_normalize=True, renormalize=True
    ),
    "AdaMuon": eqopt.ScaleByAdaMuon(),
    "APOLLO": eqopt.ScaleByAPOLLO(2),
    "APOLLO, singular vectors": eqopt.ScaleByAPOLLO(2, proj="svd"),
    "Aurora": eqopt.ScaleByAurora(),
    "Dion2": eqopt.ScaleByDion2(0.5),
    "Dion2, by row": eqopt.ScaleByDion2(0.5, b2=0.9),
    "MOSO": eqopt.ScaleByMOSO(),
    "NAMO": eqopt.ScaleByNAMO(),
    "NAMO-D": eqopt.ScaleByNAMO(per="column"),
    "row norm": eqopt.ScaleByRowNorm(),
    "Sinkhorn": eqopt.ScaleBySinkhorn(),
    **{x: eqopt.ScaleByLMO(x) for x in ("spectral", "sign", "row", "col")},
}
# Each row has its own length.
BY_ROW = "Aurora", "row norm", "Sinkhorn"


@pytest.mark.parametrize("name", BLOCKS)
def test_zeros_stay_zero(name):
    """In zero matrices and in zero rows, with finite derivatives."""
    opt = eqopt.tree.set(BLOCKS[name], weight_dimension_numbers=NUMBERS)
    first = lambda g: opt.update(g, opt.init(g))[0]
    update = interpreted(first)
    slope = interpreted(jax.grad(lambda g: jnp.sum(first(g) ** 2)))
    normal = jnp.asarray(np.random.default_rng(0).normal(size=(5, 3)), float)
    for g in (jnp.zeros((5, 3)), normal.at[1].set(0))[: 1 + (name in BY_ROW)]:
        np.testing.assert_array_equal(update(g) == 0, g == 0)
        assert jnp.isfinite(slope(g)).all()


METHODS = {method.name: method for method in BY_FAMILY["matrix"]}
# By default, the gaps between refreshes are longer than the training here.
GAPS = {"precondition_frequency", "update_proj_gap"}


@pytest.mark.parametrize(("rank", "dtype"), [(0, jnp.float32), (1, jnp.bfloat16)])
@pytest.mark.parametrize("name", METHODS)
def test_gradients_of_low_rank(name, rank, dtype):
    """Most singular values are zero, and so are most eigenvalues of the factors."""
    opt = METHODS[name].ours(0.01)
    names = GAPS.intersection(field.name for field in dataclasses.fields(opt))
    opt = dataclasses.replace(opt, **dict.fromkeys(names, 2))
    params, rng = jnp.ones((5, 4), dtype), np.random.default_rng(0)
    state, step = opt.init(params), interpreted(opt.step)
    for _ in range(6):
        g = rng.normal(size=(5, rank)) @ rng.normal(size=(rank, 4))
        params, state = step(jnp.asarray(g, dtype), state, params)
    assert jnp.abs(params).max() < 10  # and is no NaN
