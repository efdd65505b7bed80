"""L-BFGS between bounds: SciPy's minima, steps by hand, and what goes wrong."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import eqopt
from eqopt.projections import box

from .bounded import PROBLEMS, by_hand


QUICK = "HS 5", "non-negative"


@eqx.filter_jit
def step(fn, opt, params, state):
    value, grads = eqopt.value_and_grad_from_state(fn)(params, state=state)
    return opt.step(grads, state, params, value=value, grad=grads, value_fn=fn)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow])
        for name in PROBLEMS
    ],
)
@pytest.mark.costly
def test_the_minimum_that_scipy_finds(name):
    fn, start, lower, upper = PROBLEMS[name]
    with jax.enable_x64(True):
        low, high = (jnp.asarray(x, float) for x in (lower, upper))
        opt = eqopt.ProjectedLBFGS(low, high)
        x = box(jnp.asarray(start, float), low, high)
        value_and_grad = jax.jit(jax.value_and_grad(fn))
        found = scipy.optimize.minimize(
            lambda x: tuple(map(np.asarray, value_and_grad(x))),
            np.asarray(x),
            jac=True,
            method="L-BFGS-B",
            bounds=[*zip(lower, upper, strict=True)],
            options={"ftol": 0, "gtol": 1e-9, "maxiter": 1000},
        )
        state = opt.init(x)
        for _ in range(200):
            x, state = step(fn, opt, x, state)
            assert jnp.all((x >= low) & (x <= high))
            if state.optimality <= 1e-9:
                break
        assert state.optimality <= 1e-9
        np.testing.assert_allclose(state.search.value, found.fun, 1e-12, 1e-13)
        np.testing.assert_allclose(state.search.value, fn(x), 1e-12, 1e-15)
        np.testing.assert_allclose(x, found.x, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name, memory", [("HS 5", 10), ("non-negative", 3)])
@pytest.mark.costly
def test_steps_by_hand(name, memory):
    """Numbers reach their bounds and leave them, and steps are reduced."""
    fn, start, lower, upper = PROBLEMS[name]
    with jax.enable_x64(True):
        value_and_grad = jax.jit(jax.value_and_grad(fn))
        expected = by_hand(
            lambda x: [*map(np.asarray, value_and_grad(x))],
            np.asarray(start, float),
            *(np.asarray(x, float) for x in (lower, upper)),
            steps=6,
            memory=memory,
        )
        bounds = (jnp.asarray(x, float) for x in (lower, upper))
        opt = eqopt.ProjectedLBFGS(*bounds, memory_size=memory)
        x = jnp.asarray(start, float)
        state = opt.init(x)
        for now in expected:
            x, state = step(fn, opt, x, state)
            np.testing.assert_allclose(x, now, rtol=1e-9, atol=1e-11)


class Model(eqx.Module):
    rate: jax.Array
    shift: jax.Array
    frozen: jax.Array
    activation: object = jnp.tanh


def distance(model):
    far = (model.rate - jnp.array([2.0, -1.0])) ** 2
    return 0.5 * (jnp.sum(far) + jnp.sum((model.shift - 3.0) ** 2))


MODEL = Model(jnp.array([0.5, 0.5]), jnp.zeros(()), jnp.ones(3))
LOWER = Model(jnp.zeros(2), None, None, None)


@pytest.mark.slow
def test_one_step_of_a_model():
    """By hand: of length 1, along the gradient (-1.5, 1.5, -3), and then projected."""
    trained = eqx.tree_at(lambda m: m.frozen, MODEL, None)
    grads = eqx.filter_grad(lambda m: distance(eqx.combine(m, MODEL)))(trained)
    opt = eqopt.ProjectedLBFGS(LOWER, 0.75)
    extra = {"value": distance(MODEL), "grad": grads, "value_fn": distance}
    new, state = eqx.filter_jit(opt.step)(grads, opt.init(trained), MODEL, **extra)
    u = np.array([1.5, -1.5, 3.0]) / np.sqrt(2 * 1.5**2 + 3.0**2)
    np.testing.assert_allclose(new.rate, [0.75, 0.5 + u[1]], rtol=1e-6)
    np.testing.assert_allclose(new.shift, 0.75, rtol=1e-6)
    assert jnp.array_equal(new.frozen, MODEL.frozen)
    # The second number of `rate` may still move to 0.
    np.testing.assert_allclose(state.optimality, 0.5 + u[1], rtol=1e-6)
    updates, _ = eqx.filter_jit(opt.update)(grads, opt.init(trained), MODEL, **extra)
    np.testing.assert_allclose(updates.rate, new.rate - MODEL.rate, rtol=1e-6)
    assert updates.frozen is None


@eqx.filter_jit
def step_uphill(opt, params, state):
    """A step with a gradient that is wrong: the loss has its minimum here."""
    loss = lambda x: jnp.sum(jnp.abs(x - params))
    extra = {"value": jnp.zeros(()), "grad": jnp.ones(2), "value_fn": loss}
    return opt.step(jnp.ones(2), state, params, **extra)


@pytest.mark.slow
def test_no_decrease():
    """The parameters stay, and a second failure is final."""
    opt = eqopt.ProjectedLBFGS(-1.0, 1.0, max_linesearch_steps=3)
    x = jnp.array([0.5, 0.5])
    state = opt.init(x)
    for _ in range(2):
        new, state = step_uphill(opt, x, state)
        assert jnp.array_equal(new, x)
        assert state.search.learning_rate == 0
        assert state.search.info.num_linesearch_steps == 3
        assert state.search.info.decrease_error > 0


def test_a_start_outside():
    """It is moved to the bounds, even if the search fails."""
    opt = eqopt.ProjectedLBFGS(-1.0, 1.0, max_linesearch_steps=3)
    x = jnp.array([3.0, 0.5])
    new, state = step_uphill(opt, x, opt.init(x))
    assert state.search.learning_rate == 0
    assert jnp.array_equal(new, jnp.array([1.0, 0.5]))
    assert jnp.isinf(state.search.value) and jnp.isinf(state.optimality)


@pytest.mark.slow
def test_a_start_at_a_minimum_outside():
    """Its loss and gradient are not for the point between the bounds."""
    fn = lambda p: (p[0] - 3) ** 2 + (p[1] - (p[0] - 3)) ** 2
    opt = eqopt.ProjectedLBFGS(jnp.array([-1.0, -9.0]), jnp.array([1.0, 9.0]))
    x = jnp.array([3.0, 0.0])
    state = opt.init(x)
    for _ in range(10):
        x, state = step(fn, opt, x, state)
    np.testing.assert_allclose(x, [1.0, -2.0], atol=1e-4)
    assert state.optimality < 1e-3


def test_a_bound_that_the_parameters_cannot_have():
    """0.1 is between two numbers of bfloat16."""
    opt = eqopt.ProjectedLBFGS(lower=0.1)
    x = jnp.asarray([0.1, 0.5], jnp.bfloat16)
    _, is_free = opt._bounds(x, jnp.ones(2, jnp.bfloat16))
    assert is_free.tolist() == [False, True]


def test_errors():
    owner = "ProjectedLBFGS.*: "
    with pytest.raises(ValueError, match=rf"{owner}the lower bound 1.0 .* at `.rate`"):
        eqopt.ProjectedLBFGS(1.0, 0.0).init(MODEL)
    with pytest.raises(ValueError, match=rf"{owner}`lower` must broadcast.*\(4,\)"):
        eqopt.ProjectedLBFGS(jnp.zeros(4)).init(jnp.zeros(3))
    opt, x = eqopt.ProjectedLBFGS(), jnp.ones(2)
    with pytest.raises(ValueError, match=rf"{owner}the extra argument `value_fn` is"):
        opt.step(x, opt.init(x), x)
