"""Which points a search evaluates, what it finds, and what happens if it fails."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqopt

from .subjects import found, minimise, problem, quadratic, stepper


BACKTRACKING = eqopt.ScaleByBacktrackingLinesearch(30, store_grad=True)
ZOOM = eqopt.ScaleByZoomLinesearch(20)
both = pytest.mark.parametrize("search", [BACKTRACKING, ZOOM], ids=["armijo", "wolfe"])


def descent(search, learning_rate=1.0):
    return eqopt.Chain(eqopt.SGD(learning_rate), search)


def search_along(search, direction, loss, params, grads=None):
    """One search along a given direction."""
    value, own = eqx.filter_value_and_grad(loss)(params)
    extra = {"value": value, "grad": own if grads is None else grads, "value_fn": loss}
    return search.step(direction, search.init(params), params, **extra)


@both
@pytest.mark.slow
def test_only_the_search_evaluates_the_loss(search):
    calls = []

    def loss(p):
        jax.debug.callback(lambda: calls.append(1))
        return quadratic(p)

    opt, params = descent(search), jnp.zeros(4)
    step, state, expected = stepper(opt, loss), opt.init(params), 1  # the first value
    for _ in range(6):
        params, state = step(params, state)
        jax.effects_barrier()
        expected += int(found(state).info.num_linesearch_steps)
        assert len(calls) == expected


@both
@pytest.mark.slow
def test_value_and_gradient_are_those_of_the_new_parameters(search):
    model = eqx.nn.MLP(2, 1, 4, 1, key=jr.key(0))
    x = jr.normal(jr.key(1), (8, 2))
    loss = lambda model: jnp.mean((jax.vmap(model)(x)[:, 0] - jnp.sin(x[:, 0])) ** 2)
    for new, state in minimise(descent(search), loss, model, 5):
        value, grads = eqx.filter_value_and_grad(loss)(new)
        np.testing.assert_allclose(found(state).value, value, 1e-6)
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, 1e-4, 1e-6),
            found(state).grad,
            grads,
        )


@pytest.mark.parametrize("name", ["rosenbrock", "quadratic", "logistic"])
@pytest.mark.slow
def test_the_wolfe_conditions_hold(name, x64):
    with x64():
        loss, before = problem(name)
        for after, state in minimise(descent(ZOOM), loss, before, 8):
            (value, grad), (new_value, new_grad) = (
                jax.value_and_grad(loss)(p) for p in (before, after)
            )
            rate = found(state).learning_rate
            slope = -sum(jnp.sum(g * g) for g in jax.tree.leaves(grad))
            new_slope = -sum(
                jnp.sum(g * h)
                for g, h in zip(*map(jax.tree.leaves, (grad, new_grad)), strict=True)
            )
            assert new_value <= value + 1e-4 * rate * slope + 1e-12
            assert abs(new_slope) <= 0.9 * abs(slope) + 1e-9
            before = after


def only_here(p):
    return jnp.where(p[0] == 1, 0.0, jnp.nan) * p[0]


ZEROS = jnp.zeros(3)
# The loss, the parameters, and a direction in which there is nothing to find.
NOWHERE = {
    "uphill": (quadratic, ZEROS, jax.grad(quadratic)(ZEROS)),
    "nowhere a number": (only_here, jnp.ones(1), -jnp.ones(1)),
    "no direction": (quadratic, ZEROS, jnp.full(3, jnp.nan)),
}


@both
@pytest.mark.parametrize("name", NOWHERE)
@pytest.mark.slow
def test_there_is_nothing_to_find(search, name):
    """It stays, with the value and the gradient that it was given."""
    loss, params, direction = NOWHERE[name]
    value, grad = loss(params), jnp.ones_like(params)
    extra = {"value": value, "grad": grad, "value_fn": loss}
    new, state = search.step(direction, search.init(params), params, **extra)
    assert jnp.array_equal(new, params)
    assert found(state).learning_rate == 0
    assert found(state).value == value
    assert jnp.array_equal(found(state).grad, grad)


@both
@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf, -jnp.inf])
@pytest.mark.costly
def test_points_whose_loss_is_not_finite_are_rejected(search, bad):
    """The loss is `bad` from a distance of 0.1 on."""

    def loss(p):
        return jnp.where(jnp.abs(p[0] - 1) < 0.1, (p[0] - 3) ** 2, bad)

    params = jnp.array([1.0])
    new, state = search_along(search, jnp.array([1.0]), loss, params)
    if bad == -jnp.inf:  # as low as can be
        assert found(state).learning_rate > 0
        return
    assert 0 < found(state).learning_rate < 0.1
    assert loss(new) < loss(params)
    assert jnp.isfinite(found(state).value)


@both
@pytest.mark.costly
def test_a_search_that_failed_does_not_spoil_the_next(search):
    params = jnp.zeros(3)
    cliff = lambda p: jnp.where(jnp.all(p == 0), 1.0, jnp.nan) + 0 * jnp.sum(p)
    _, state = search_along(search, -jnp.ones(3), cliff, params, grads=jnp.ones(3))
    assert found(state).learning_rate == 0
    value, grad = jax.value_and_grad(quadratic)(params)
    new, state = search.step(
        -grad, state, params, value=value, grad=grad, value_fn=quadratic
    )
    assert found(state).learning_rate > 0
    assert quadratic(new) < value


def test_backtracking_takes_a_small_decrease_but_no_increase():
    search = eqopt.ScaleByBacktrackingLinesearch(2, 0.9, 0.5)
    params, loss = jnp.array([1.0]), lambda p: p[0] ** 2
    # 1, 1/2 and 1/4 of the way: never nine tenths of what the slope promises.
    new, state = search_along(search, -2 * params, loss, params)
    assert found(state).info.num_linesearch_steps == 3
    assert found(state).info.decrease_error > 0
    assert found(state).learning_rate == 0.25
    assert loss(new) < loss(params)
    new, state = search_along(search, -200 * params, loss, params)
    assert jnp.array_equal(new, params)
    assert found(state).learning_rate == 0
    assert found(state).guess == 0.25


def test_the_step_size_is_a_constant_for_derivatives():
    """Also if the loss depends on the variable of the derivative."""

    @jax.jit
    @jax.grad
    def slope(target):
        loss = lambda p: jnp.sum((p - target) ** 2)
        opt, p = descent(ZOOM, 0.25), jnp.zeros(2)
        value, grad = jax.value_and_grad(loss)(p)
        p, state = opt.step(grad, opt.init(p), p, value=value, grad=grad, value_fn=loss)
        return jnp.sum(p) / found(state).learning_rate

    np.testing.assert_allclose(slope(1.0), 1.0, 1e-5)  # 2 * 0.25 * 2 * target


@both
def test_it_says_so_when_it_fails(search, capfd):
    loud = type(search)(5, verbose=True)
    params = jnp.zeros(3)
    grad = jax.grad(quadratic)(params)
    jax.block_until_ready(search_along(loud, grad, quadratic, params))
    jax.effects_barrier()
    said = capfd.readouterr().out
    assert type(search).__name__ in said
    assert str(quadratic(params))[:5] in said
    jax.block_until_ready(search_along(loud, -grad / 1e4, quadratic, params))
    jax.effects_barrier()
    assert not capfd.readouterr().out


ERRORS = [
    ({"value_fn": None}, "argument `value_fn` is needed"),
    ({"value": None}, "`value`"),
    ({"grad": None}, "argument `grad` is needed"),
    ({"value": jnp.ones(2)}, r"`value` must be .* shape \(2,\)"),
    ({"value_fn": lambda p: p}, r"`value_fn` must return a real .*f32\[3\]"),
    ({"value_fn": lambda p: (quadratic(p), p)}, "Return only the loss"),
    ({"grad": {"a": jnp.ones(3)}}, r"another tree structure than `grad`"),
]


@both
@pytest.mark.parametrize(("given", "message"), ERRORS)
def test_what_is_missing_or_wrong(search, given, message):
    params = jnp.zeros(3)
    extra = {"value": jnp.ones(()), "grad": params, "value_fn": quadratic, **given}
    with pytest.raises(ValueError, match=message):
        search.update(params, search.init(params), params, **extra)


@both
def test_a_gradient_that_does_not_cover_the_updates(search):
    params = {"a": jnp.zeros(2), "b": jnp.zeros(2)}
    with pytest.raises(ValueError, match=r"`grad` has no value at `\['b'\]`"):
        search.update(
            params,
            search.init(params),
            params,
            value=jnp.ones(()),
            grad={"a": jnp.zeros(2), "b": None},
            value_fn=lambda p: jnp.sum(p["a"]),
        )


def test_value_and_grad_needs_one_search_that_keeps_gradients():
    params, evaluate = jnp.zeros(3), eqopt.value_and_grad_from_state(quadratic)
    for opt, message in [
        (eqopt.Adam(0.1), "there are 0"),
        (eqopt.Chain(ZOOM, BACKTRACKING), "there are 2"),
        (eqopt.ScaleByBacktrackingLinesearch(5), "store_grad=True"),
    ]:
        with pytest.raises(ValueError, match=message):
            evaluate(params, state=opt.init(params))


def test_value_and_grad_takes_other_arguments():
    loss = lambda p, scale, *, shift: scale * jnp.sum((p - shift) ** 2)
    params = jnp.zeros(2)
    value, grad = eqopt.value_and_grad_from_state(loss)(
        params, 2.0, state=ZOOM.init(params), shift=1.0
    )
    assert value == 4
    assert jnp.array_equal(grad, jnp.full(2, -4.0))


@both
@pytest.mark.slow
def test_in_a_partition_all_gradients_are_computed(search):
    """The other group needs its gradient, and has moved since the search."""
    loss = lambda p: jnp.sum((p["a"] - 1) ** 2) + jnp.sum((p["b"] - 2) ** 2)
    groups = {"search": descent(search), "other": eqopt.SGD(0.1)}
    opt = eqopt.Partition(groups, {"a": "search", "b": "other"})
    step, params = stepper(opt, loss), {"a": jnp.zeros(2), "b": jnp.zeros(3)}
    state = opt.init(params)
    for _ in range(3):
        value, grads = eqopt.value_and_grad_from_state(loss)(params, state=state)
        assert value == loss(params)
        np.testing.assert_allclose(grads["b"], 2 * (params["b"] - 2), 1e-6)
        params, state = step(params, state)
    assert jax.tree.leaves(found(state).grad)[0].shape == (2,)
    np.testing.assert_allclose(params["b"], 2 - 2 * 0.8**3, 1e-6)


@pytest.mark.slow
def test_value_and_gradient_are_not_the_buffers_of_the_state():
    _, state = search_along(ZOOM, -jax.grad(quadratic)(ZEROS), quadratic, ZEROS)
    value, grad = eqopt.value_and_grad_from_state(quadratic)(ZEROS, state=state)
    assert value == state.value and value is not state.value
    assert grad is not state.grad


@pytest.mark.parametrize("dtypes", [("float32", "bfloat16"), ("bfloat16", "float32")])
@pytest.mark.parametrize(
    "opt",
    [
        eqopt.LBFGS(),
        eqopt.Chain(eqopt.SGD(1.0), BACKTRACKING),
        eqopt.ProjectedLBFGS(-1.0, 1.0),
    ],
    ids=["wolfe", "armijo", "projected"],
)
@pytest.mark.costly
def test_gradients_of_another_precision(opt, dtypes):
    of_params, of_grads = map(jnp.dtype, dtypes)
    params = jnp.zeros(3, of_params)
    fn = lambda p: jnp.sum((p - 0.5) ** 2)
    value, grads = jax.value_and_grad(fn)(params)
    grads = grads.astype(of_grads)
    step = jax.jit(
        lambda grads, state, params: opt.step(
            grads, state, params, value=value, grad=grads, value_fn=fn
        )
    )
    new, _ = step(grads, opt.init(params), params)
    assert new.dtype == of_params and fn(new) < 0.5


def test_the_best_step_size_is_kept():
    """While they grow, too: both are low enough, and neither is at a minimum."""
    loss = lambda p: jnp.abs(p - 1.45)
    search = eqopt.ScaleByZoomLinesearch(2, initial_guess_strategy="one")
    _, state = search_along(search, jnp.ones(()), loss, jnp.zeros(()))
    assert state.info.num_linesearch_steps == 2
    assert state.learning_rate == 1


def test_rounding_is_no_curvature():
    """Halves of 1 until the minimum of a parabola, 1/100, is well inside, and then it."""
    opt = descent(eqopt.ScaleByZoomLinesearch(20, curv_rtol=1e-3))
    loss = lambda p: 50 * p**2

    def search(p):
        value, grad = jax.value_and_grad(loss)(p)
        extra = {"value": value, "grad": grad, "value_fn": loss}
        return found(opt.step(grad, opt.init(p), p, **extra)[1])

    state = jax.jit(jax.vmap(search))(jnp.linspace(0.1, 0.9, 33))
    np.testing.assert_allclose(state.learning_rate, 0.01, 1e-5)
    np.testing.assert_array_equal(state.info.num_linesearch_steps, 6)
