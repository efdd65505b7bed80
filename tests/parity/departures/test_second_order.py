"""Where steps by curvature depart from Optax on purpose, on both sides."""

import jax
import jax.numpy as jnp
import optax
import pytest

import eqopt


pytestmark = pytest.mark.usefixtures("standard_promotion")


@pytest.mark.slow
def test_pairs_of_negative_curvature():
    params, grads = jnp.array([1.0, 2.0]), jnp.ones(2)
    slopes = []
    for opt in (eqopt.ScaleByLBFGS(), optax.scale_by_lbfgs()):
        _, state = opt.update(grads, opt.init(params), params)
        later = grads + jnp.array([-1.0, 0.5])
        updates, _ = opt.update(later, state, params + jnp.array([0.5, 0.25]))
        slopes.append(jnp.vdot(updates, later))
    assert slopes[0] > 0
    assert slopes[1] < 0


@pytest.mark.slow
def test_a_step_without_curvature():
    """It keeps the scale of the last pair. In Optax the scale is zero, so only the
    components of the gradient along earlier pairs remain."""
    params, grads = jnp.zeros(2), jnp.array([3.0, 4.0])
    found = []
    for opt in (eqopt.ScaleByLBFGS(), optax.scale_by_lbfgs()):
        state = opt.init(params)
        for p, g in [
            (params, grads),
            (params + 0.1, grads + jnp.array([0.2, 0.2])),
            (params + jnp.array([0.2, 0.1]), grads + jnp.array([0.2, 9.0])),
        ]:
            updates, state = opt.update(g, state, p)
        found.append(updates)
    assert abs(found[0][0] - found[0][1]) > 1
    assert jnp.allclose(found[1][0], found[1][1])  # as of the first pair


@pytest.mark.slow
def test_sophia_takes_whole_models():
    model = {"weight": jnp.ones(2), "activation": jnp.tanh}
    value_fn = lambda m: jnp.sum(m["activation"](m["weight"]) ** 2)
    grads = {"weight": jnp.ones(2), "activation": None}
    opt = eqopt.Sophia(0.1)
    new, _ = opt.step(grads, opt.init(model), model, value_fn=value_fn)
    assert new["activation"] is jnp.tanh
    with pytest.raises((TypeError, AttributeError)):
        theirs = optax.contrib.sophia(0.1)
        theirs.update(grads, jax.eval_shape(theirs.init, model), model, obj_fn=value_fn)
