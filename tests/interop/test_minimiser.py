"""Optimizers in the loop of Optimistix."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import optimistix as optx
import pytest

import eqopt
from eqopt.interop.optimistix import Minimiser


pytestmark = pytest.mark.slow


TARGET = {"a": jnp.array([1.0, -2.0]), "b": jnp.array(0.5)}
START = {"a": jnp.zeros(2), "b": jnp.zeros(())}


def bowl(y, target):
    """Convex, with another curvature in each direction; its minimum is at the target."""
    d = jax.tree.map(lambda y, t: y - t, y, target)
    return 2 * jnp.sum(d["a"] ** 2) + d["b"] ** 2 + jnp.sum(d["a"] ** 4)


def bowl_with_aux(y, target):
    return bowl(y, target), {"y": y}


def close(left, right, atol=1e-3):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=atol), left, right)


PAIRS = {
    "adam": (eqopt.Adam(0.1), optax.adam(0.1)),
    "polyak": (eqopt.PolyakSGD(0.3), optax.polyak_sgd(0.3)),
    "schedule": (
        eqopt.AMSGrad(eqopt.schedules.Linear(0.2, 0.01, 50)),
        optax.amsgrad(optax.linear_schedule(0.2, 0.01, 50)),
    ),
}


@pytest.mark.usefixtures("standard_promotion")
@pytest.mark.parametrize("name", PAIRS)
def test_step_by_step_like_that_for_optax(name):
    ours, theirs = PAIRS[name]
    solvers = (
        Minimiser(ours, rtol=1e-4, atol=1e-4),
        optx.OptaxMinimiser(theirs, rtol=1e-4, atol=1e-4),
    )
    f_struct = jax.ShapeDtypeStruct((), jnp.float32)
    aux_struct = jax.eval_shape(lambda: {"y": START})
    common = TARGET, {}
    ys = [START, START]
    states = [
        s.init(bowl_with_aux, START, *common, f_struct, aux_struct, frozenset())
        for s in solvers
    ]
    steps = [
        eqx.filter_jit(
            lambda y, state, s=s: s.step(bowl_with_aux, y, *common, state, frozenset())
        )
        for s in solvers
    ]
    for i in range(20):
        for k, step in enumerate(steps):
            y = ys[k]
            ys[k], states[k], aux = step(y, states[k])
            assert eqx.tree_equal(aux["y"], y)
        close(*ys, atol=1e-5)
        assert states[0].step == states[1].step == i + 1
        np.testing.assert_allclose(states[0].f, states[1].f, rtol=1e-4, atol=1e-5)

    solutions = [
        optx.minimise(bowl, s, START, TARGET, max_steps=2000, throw=False)
        for s in solvers
    ]
    assert solutions[0].result == solutions[1].result == optx.RESULTS.successful
    assert solutions[0].stats["num_steps"] == solutions[1].stats["num_steps"] > 10
    close(solutions[0].value, solutions[1].value, atol=1e-5)
    close(solutions[0].value, TARGET, atol=0.2)


@pytest.mark.parametrize(
    "opt",
    [
        eqopt.SAM(eqopt.Adam(0.1)),  # takes turns, and needs to be told the gradients
        eqopt.Sophia(0.05),  # needs `value_fn`
        eqopt.MoMo(0.5),  # needs `value`
    ],
    ids=lambda opt: type(opt).__name__,
)
def test_optimizers_that_need_more(opt):
    solver = Minimiser(opt, rtol=1e-7, atol=1e-7)
    solution = optx.minimise(bowl, solver, START, TARGET, max_steps=600, throw=False)
    assert bowl(solution.value, TARGET) < 0.02 * bowl(START, TARGET)


def test_holding_still_is_not_the_end():
    """Three out of four steps do not move, and the value does not, either."""
    plain = Minimiser(eqopt.SGD(0.05), rtol=1e-4, atol=1e-4)
    held = Minimiser(eqopt.MultiSteps(eqopt.SGD(0.05), 4), rtol=1e-4, atol=1e-4)
    one, other = (
        optx.minimise(bowl, s, START, TARGET, max_steps=1000) for s in (plain, held)
    )
    assert other.stats["num_steps"] == 4 * one.stats["num_steps"] > 40
    close(one.value, other.value, 1e-6)


def test_a_line_search_that_can_go_no_further_is_the_end():
    solver = Minimiser(eqopt.LBFGS(), rtol=0.0, atol=1e-30)
    solution = optx.minimise(bowl, solver, START, TARGET, max_steps=200)
    close(solution.value, TARGET)
    assert solution.stats["num_steps"] < 50


def test_the_solution_is_what_to_evaluate_with():
    solver = Minimiser(eqopt.ScheduleFree(eqopt.SGD(0.05), 0.05), rtol=1e-3, atol=1e-3)
    solution = optx.minimise(bowl, solver, START, TARGET, max_steps=9, throw=False)
    opt, y, state = solver.opt, START, None
    state = opt.init(y)
    for _ in range(9):
        y, state = opt.step(jax.grad(bowl)(y, TARGET), state, y)
    close(solution.value, opt.eval_params(state, y), 1e-5)
    assert abs(solution.value["a"][0] - y["a"][0]) > 1e-3


def test_a_new_learning_rate_compiles_nothing():
    traces = []

    def fn(y, target):
        traces.append(None)
        return bowl(y, target)

    def solve(learning_rate):
        solver = Minimiser(eqopt.Adam(learning_rate), rtol=1e-3, atol=1e-3)
        return optx.minimise(fn, solver, START, TARGET, max_steps=5, throw=False)

    one = solve(jnp.asarray(0.1))
    count = len(traces)
    other = solve(jnp.asarray(0.2))
    assert len(traces) == count
    assert not eqx.tree_equal(one.value, other.value)


def test_reports(capfd):
    """To a function, or printed."""
    names = []
    report = lambda **values: names.append({k: v[0] for k, v in values.items()})
    for verbose in (report, True):
        solver = Minimiser(eqopt.SGD(0.1), 1e-3, 1e-3, verbose=verbose)
        optx.minimise(bowl, solver, START, TARGET, max_steps=3, throw=False)
        jax.effects_barrier()
        assert ("step: 2, loss: " in capfd.readouterr().out) is (verbose is True)
    assert names[0] == {"num_steps": "step", "loss_this_step": "loss", "y": "y"}


@pytest.mark.filterwarnings("ignore:Complex support in Optimistix")
def test_complex_parameters():
    """Gradients are conjugated: their imaginary parts point the other way."""
    fn = lambda y, args: jnp.sum(eqopt.numerics.abs_sq(y - (1 + 2j)))
    solver = Minimiser(eqopt.Adam(0.1), rtol=1e-4, atol=1e-4)
    solution = optx.minimise(
        fn, solver, jnp.zeros(2, jnp.complex64), max_steps=1000, throw=False
    )
    np.testing.assert_allclose(solution.value, 1 + 2j, atol=0.1)


@pytest.mark.parametrize("opt", [eqopt.LBFGS(), eqopt.SGD(0.2)], ids=["L-BFGS", "SGD"])
@pytest.mark.parametrize("atol", [0.0, 1e-8])
def test_rounding_is_within_any_tolerance(opt, atol):
    """At the minimum, steps are zero, or alternate between two neighbours."""
    found = optx.minimise(
        lambda x, _: x**2 + jnp.exp(x),
        Minimiser(opt, rtol=0.0, atol=atol),
        jnp.asarray(1.0),
        max_steps=50,
    )
    np.testing.assert_allclose(found.value, -0.3517337, rtol=1e-6)
