"""Parameters that `Project` keeps in a set."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt
from eqopt import projections

from ..laws.subjects import assert_close, grads_of, params_of


BALL = functools.partial(projections.l2_ball, scale=0.5)


def trained(opt, params, steps=3):
    state = opt.init(params)
    for i in range(steps):
        params, state = opt.step(grads_of(params, i), state, params)
    return params


def test_it_is_projected_gradient_descent():
    """For a ball, the nearest point to a target outside it is known."""
    target = jnp.array([3.0, -4.0])
    opt = eqopt.Project(eqopt.SGD(0.1), BALL)
    params = jnp.zeros(2)
    state = opt.init(params)
    for _ in range(50):
        params, state = opt.step(params - target, state, params)
    np.testing.assert_allclose(params, [0.3, -0.4], 1e-5)


@pytest.mark.parametrize("call", ["update", "step"])
def test_a_group_is_projected(call):
    """The projection gets only the group; `step` does the same as `update`."""
    seen = []

    def projection(params):
        seen.append(params)
        return jax.tree.map(jnp.zeros_like, params)

    params = params_of()
    mask = {"matrix": False, "more": [True, None, {"scalar": False}]}
    opt = eqopt.Project(eqopt.SGD(0.1), projection, mask)
    grads, state = grads_of(params, 0), opt.init(params)
    if call == "step":
        new, _ = opt.step(grads, state, params)
    else:
        updates, _ = opt.update(grads, state, params)
        new = eqopt.apply_updates(params, updates)
    expected = trained(eqopt.SGD(0.1), params, 1)
    expected["more"][0] = jnp.zeros(3)
    assert_close(new, expected)
    assert (new["more"][0] == 0).all()
    (shown,) = seen
    assert jax.tree.leaves(shown)[0].shape == (3,)
    assert len(jax.tree.leaves(shown)) == 1


@pytest.mark.parametrize(
    ("projection", "most"), [(projections.non_negative, 0.001), (BALL, 0.251)]
)
def test_no_copy_of_the_parameters(projection, most):
    """Except for one leaf with a ball: for the norm, XLA computes a sum twice."""
    params = {str(i): jnp.ones((256, 256)) for i in range(4)}
    opt = eqopt.Project(eqopt.SGD(0.1), projection)
    step = jax.jit(
        lambda grads, params: opt.step(grads, opt.init(params), params)[0],
        donate_argnums=1,
    )
    compiled = step.lower(params, params).compile()
    size = sum(x.nbytes for x in params.values())
    assert compiled.memory_analysis().temp_size_in_bytes <= most * size


def test_a_function_that_is_no_projection():
    params = {"w": jnp.ones(2), "b": jnp.ones(3)}
    opt = eqopt.Project(eqopt.SGD(0.1), lambda x: jax.tree.map(lambda p: p[:2], x))
    message = r"Project: `projection\(params\)` has float32\[2\] at `\['b'\]`, but its"
    with pytest.raises(ValueError, match=message):
        opt.step(params, opt.init(params), params)


def test_a_projection_in_another_dtype():
    opt = eqopt.Project(eqopt.SGD(0.1), lambda p: p.astype(jnp.bfloat16))
    new, _ = opt.step(jnp.ones(3), opt.init(jnp.ones(3)), jnp.ones(3))
    np.testing.assert_array_equal(new, jnp.full(3, 0.9, jnp.bfloat16))
    assert new.dtype == jnp.float32
