"""Step by step against `torch.optim`, for the arguments that both have."""

import equinox as eqx
import jax.random as jr
import numpy as np
import pytest

from ..methods import METHODS


CASES = {
    name: case for method in METHODS.values() for name, case in method.torch.items()
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_trajectory(name):
    torch = pytest.importorskip("torch")
    case = CASES[name]
    start = [jr.normal(jr.key(i), shape) for i, shape in enumerate([(3, 4), (4,), ()])]
    theirs = [torch.nn.Parameter(torch.tensor(np.asarray(p))) for p in start]
    optimizer = getattr(torch.optim, case.name)(theirs, **case.arguments)
    params, state = start, case.ours.init(start)
    step = eqx.filter_jit(case.ours.step)
    for i in range(12):
        keys = jr.split(jr.key(100 + i), len(params))
        grads = [jr.normal(k, p.shape) for k, p in zip(keys, params, strict=True)]
        params, state = step(grads, state, params)
        for p, g in zip(theirs, grads, strict=True):
            p.grad = torch.tensor(np.asarray(g))
        optimizer.step()
        for ours, reference in zip(params, theirs, strict=True):
            np.testing.assert_allclose(
                ours, reference.detach().numpy(), case.rtol, case.rtol / 10
            )
