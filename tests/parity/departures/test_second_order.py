"""Where steps by curvature and line searches depart from Optax on purpose."""

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


ZOOM = eqopt.ScaleByZoomLinesearch(10), optax.scale_by_zoom_linesearch(10)
BACKTRACKING = (
    eqopt.ScaleByBacktrackingLinesearch(3),
    optax.scale_by_backtracking_linesearch(3),
)


def bowl(p):
    return jnp.sum(jnp.abs(p) ** 2)


def searched(opt, direction, params, loss=bowl, state=None):
    value, grad = jax.value_and_grad(loss)(params)
    state = opt.init(params) if state is None else state
    return opt.update(direction, state, params, value=value, grad=grad, value_fn=loss)


@pytest.mark.parametrize("pair", [ZOOM, BACKTRACKING], ids=["zoom", "backtracking"])
@pytest.mark.costly
def test_uphill(pair):
    """Optax goes there, with all evaluations that it may take."""
    params = jnp.ones(2)
    (ours, state), (theirs, their_state) = (searched(x, params, params) for x in pair)
    assert bowl(params + ours) == bowl(params)
    assert bowl(params + theirs) > bowl(params)
    if pair is ZOOM:
        assert state.info.num_linesearch_steps == 0
        assert their_state.info.num_linesearch_steps == 10


@pytest.mark.slow
def test_gradients_that_are_not_conjugated():
    """Optax starts from the real part of the square of the gradient: of 1 + i, zero."""
    params, loss = jnp.array([1 + 1j]), lambda p: bowl(p - 0.1 * (1 + 1j)) ** 2 / 9
    direction = -jax.grad(loss)(params).conj()
    ours, theirs = ZOOM
    with pytest.raises(RuntimeError, match="`grad` is the conjugate of the gradient"):
        searched(ours, direction, params, loss)
    assert searched(theirs, direction, params, loss)[1].info.num_linesearch_steps > 5


@pytest.mark.slow
def test_gradients_that_are_conjugated():
    """Both libraries take them, as updates and as `grad`."""
    params, target = jnp.zeros(1, jnp.complex64), 1 + 2j
    loss = lambda p: bowl(p - target)
    value, grad = jax.value_and_grad(loss)(params)
    extra = {"value": value, "grad": grad.conj(), "value_fn": loss}
    for opt in ZOOM:
        updates, _ = opt.update(-grad.conj() / 2, opt.init(params), params, **extra)
        assert jnp.allclose(params + updates, target)


def test_backtracking_after_a_step_size_of_zero():
    """It tries again; in Optax, nothing times 1.5 is nothing."""
    params = jnp.zeros(2)
    cliff = lambda p: jnp.where(jnp.all(p == 0), 1.0, jnp.nan) + jnp.sum(p)
    slope = lambda p: jnp.sum((p - 1) ** 2)
    ours, theirs = (
        searched(opt, jnp.ones(2), params, slope, state)[0]
        for opt in BACKTRACKING
        for state in [searched(opt, jnp.ones(2), params, cliff)[1]]
    )
    assert jnp.all(ours > 0)
    assert not theirs.any()


@pytest.mark.slow
def test_derivatives_of_a_step():
    def end(opt, scale):
        params = jnp.ones(2)
        updates, _ = searched(opt, -scale * params, params)
        return jnp.sum(updates)

    assert jnp.isfinite(jax.grad(lambda scale: end(ZOOM[0], scale))(1.0))
    with pytest.raises(ValueError, match="Reverse-mode"):
        jax.grad(lambda scale: end(ZOOM[1], scale))(1.0)
