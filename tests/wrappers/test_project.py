"""Parameters that `Project` keeps in a set."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import eqopt
from eqopt import projections

from ..laws.subjects import assert_close, assert_equal, grads_of, params_of


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


@pytest.mark.usefixtures("standard_promotion")
@pytest.mark.slow
def test_it_is_what_optax_does_by_hand():
    params, tx = params_of(), optax.adam(0.1)
    ours = trained(eqopt.Project(eqopt.Adam(0.1), BALL), params)
    theirs, state = params, tx.init(params)
    for i in range(3):
        updates, state = tx.update(grads_of(theirs, i), state)
        theirs = optax.projections.projection_l2_ball(
            optax.apply_updates(theirs, updates), 0.5
        )
    assert_close(ours, theirs)


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


def test_whole_models_and_parameters_without_gradients():
    model = eqx.nn.MLP(3, 2, 4, 1, key=jr.key(0))
    opt = eqopt.Project(eqopt.SGD(0.1), BALL)
    bias = lambda m: m.layers[0].bias
    grads = eqx.tree_at(bias, grads_of(model, 0), None)
    new, _ = opt.step(grads, opt.init(model), model)
    assert jax.tree.structure(new) == jax.tree.structure(model)
    assert_equal(bias(new), bias(model))
    rest = eqx.tree_at(bias, new, None)
    np.testing.assert_allclose(eqopt.tree.norm(rest), 0.5, 1e-6)


@pytest.mark.slow
def test_the_radius_is_data():
    params = params_of()

    def norm_after(radius):
        ball = functools.partial(projections.l2_ball, scale=radius)
        return eqopt.tree.norm(trained(eqopt.Project(eqopt.SGD(0.1), ball), params, 1))

    np.testing.assert_allclose(jax.grad(norm_after)(jnp.float32(0.5)), 1, 1e-5)

    @eqx.filter_jit
    @eqx.debug.assert_max_traces(max_traces=1)
    def step(opt, grads, state, params):
        return opt.step(grads, state, params)

    for radius in (0.5, 0.25):
        ball = functools.partial(projections.l2_ball, scale=jnp.float32(radius))
        opt = eqopt.Project(eqopt.SGD(0.1), ball)
        new, _ = step(opt, grads_of(params, 0), opt.init(params), params)
        np.testing.assert_allclose(eqopt.tree.norm(new), radius, 1e-6)


@pytest.mark.slow
def test_an_average_inside_is_projected_when_it_is_evaluated():
    params = params_of()
    outside = eqopt.ParamEMA(eqopt.Project(eqopt.SGD(0.1), BALL), 0.5)
    inside = eqopt.Project(eqopt.ParamEMA(eqopt.SGD(0.1), 0.5), BALL)
    for opt in (outside, inside):
        state, new = opt.init(params), params
        for i in range(3):
            new, state = opt.step(grads_of(params, i), state, new)
        assert eqopt.tree.norm(opt.eval_params(state, new)) <= 0.5 + 1e-6


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
