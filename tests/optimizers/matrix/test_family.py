"""What all methods for matrices share: gradients of zero, and of low rank."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from ...interpreter import interpreted
from ...methods import BY_FAMILY


pytestmark = pytest.mark.slow


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
