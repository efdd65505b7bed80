"""Optimistic gradient descent and optimistic Adam."""

import jax.numpy as jnp
import numpy as np
import pytest

import eqopt

from ..trajectory import GRADS, START, trajectory


@pytest.mark.parametrize(
    ("opt", "expected"),
    [
        (eqopt.OptimisticGradientDescent(0.1, 0.5, 3.0), -0.05),
        (eqopt.OptimisticAdam(0.1, 3.0, nesterov=False), -0.1),
    ],
)
def test_the_first_optimistic_step_does_not_jump(opt, expected):
    path = trajectory(opt, np.ones((2, 5)), START)
    np.testing.assert_allclose(path[0] - START, expected, rtol=1e-5)
    # Neither does the second step, if the gradient stays the same.
    np.testing.assert_allclose(path[1] - path[0], expected, rtol=1e-3)


@pytest.mark.slow
def test_optimism_has_its_own_schedule():
    rate, optimism = lambda t: 0.1 * t, lambda t: 0.2 * t + 0.1
    as_float = lambda f: lambda count: f(jnp.asarray(count, jnp.float32))
    opt = eqopt.OptimisticAdam(as_float(rate), as_float(optimism), b1=0.8, b2=0.9)
    direction = eqopt.ScaleByAdam(b1=0.8, b2=0.9, nesterov=True)
    state, p, last, expected = direction.init(jnp.zeros(5)), START, None, []
    for t, g in enumerate(jnp.asarray(GRADS, jnp.float32)):
        r, state = direction.update(g, state)
        p = p - rate(t) * r - optimism(t) * (r - (r if last is None else last))
        last = r
        expected.append(p)
    np.testing.assert_allclose(trajectory(opt, GRADS, START), expected, 1e-5, 1e-6)
    assert eqopt.tree.get(opt.init(jnp.zeros(5)), "learning_rate") == 0
