"""Gradients that are `None` in some of the steps: they add nothing, and lose nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt
from eqopt.aggregating import AccumulateAvgUpdates, Process

from .registry import law
from .subjects import all_finite, assert_equal, avals, both, grads_of, trail
from .test_partly_trained import by_path


# The steps with a gradient.
WITH_GRADIENT = (True, False, False, True, True)
# Rows that change without one, by their names up to the first parenthesis; and why.
ACCUMULATING = {
    *("AccumulateAvgUpdates", "ApplyEvery", "AverageIncrementallyUpdates", "Process"),
    *("DynamicLossScale", "MultiSteps", "PerElementMeanAndSumSqDiffGrads"),
    "add_mean_variance_to_opt",
}
CHANGING = {
    **dict.fromkeys(ACCUMULATING, "gradients of earlier steps are in a sum"),
    **dict.fromkeys(
        ("LBFGS", "ProjectedLBFGS", "ScaleByLBFGS"),
        "it notes that the step before had no gradient, with which it would compare",
    ),
    "Lookahead(reset)": "it resets all states when it synchronizes",
    "SAM": "each second step returns to the parameters before the first",
}


@law({"MultiSteps(SGD)", "ScaleByAdam"})
@pytest.mark.costly
def test_missing_in_some_steps(row):
    """Then neither a parameter nor its slots change, and training continues after it."""
    opt, usual = row(), trail(row)
    params, state, _, _ = usual[0]
    types, moved = avals(state), []
    for i, has_gradient in enumerate(WITH_GRADIENT):
        grads = grads_of(params, i)
        if not has_gradient:
            grads["matrix"] = None
        (updates, in_update), (new, in_step) = both(opt, grads, state, params)
        assert avals(updates) == avals(grads)
        assert avals(in_update) == avals(in_step) == types
        assert all_finite((updates, new))
        moved.append((new["matrix"] != params["matrix"]).any())
        if not has_gradient and not {row.name, row.name.partition("(")[0]} & {
            *CHANGING
        }:
            assert not moved[-1]
            assert_equal(of_matrix(in_step), of_matrix(state))
        params, state = new, in_step
    moves = [x.params["matrix"] for x in usual]
    assert any(moved[3:]) == (moves[5] != moves[3]).any()


def of_matrix(state):
    return {path: x for path, x in by_path(state).items() if "matrix" in path}


DECAYING = eqopt.AdamW(0.1, weight_decay=0.5)
# The gradients of "b" in windows of two steps, and by how much it moves in each window:
# half of their sum, as torch does with `.grad`.
WINDOWS = {(10, 10): 10, (None, 4): 2, (4, None): 2, (None, None): 0}
ACCUMULATORS = {
    "MultiSteps": lambda inner: eqopt.MultiSteps(inner, 2),
    "in 8 bits": lambda inner: eqopt.StoreState(
        eqopt.MultiSteps(inner, 2), eqopt.storage.BlockwiseQuantized()
    ),
    "Process": lambda inner: Process(eqopt.Identity(), AccumulateAvgUpdates(2), inner),
}


def array(value):
    return None if value is None else jnp.full(2, float(value))


def moved(opt, gradients, under=lambda fn: fn):
    """By how much "b" and "frozen" move in each window of two steps."""
    params = {x: jnp.ones(2) for x in ("a", "b", "frozen")}
    state, step, moves = opt.init(params), under(opt.step), []
    for window in gradients:
        before = params
        for g in window:
            grads = {"a": array(1), "b": array(g), "frozen": None}
            params, state = step(grads, state, params)
        moves.append([float((before[x] - params[x])[0]) for x in ("b", "frozen")])
    return moves, state


@pytest.mark.parametrize("under", [jax.jit, lambda fn: fn], ids=["jit", "eager"])
@pytest.mark.parametrize("name", ACCUMULATORS)
@pytest.mark.costly
def test_accumulated(name, under):
    opt = ACCUMULATORS[name](eqopt.SGD(1.0))
    moves, _ = moved(opt, WINDOWS, lambda step: under(lambda *x: step(*x)))
    assert moves == [[move, 0] for move in WINDOWS.values()]


@pytest.mark.parametrize("name", ACCUMULATORS)
def test_accumulated_states(name):
    """They move where the parameter does, and nothing that is frozen decays."""
    opt = ACCUMULATORS[name](DECAYING)
    moves, state = moved(opt, WINDOWS)
    full, _ = moved(opt, [[0 if g is None else g for g in w] for w in WINDOWS][:3])
    assert moves == [*([move, 0] for move, _ in full), [0, 0]]
    adam = eqopt.tree.get(state, "ScaleByAdamState")
    assert not adam.mu["frozen"].any() and adam.mu["b"].all()


def test_weighted():
    """A mini-batch without a gradient counts with its weight, like one of zeros."""
    opt = eqopt.MultiSteps(eqopt.SGD(1.0), 2)
    params = {"a": jnp.ones(2), "b": jnp.ones(2)}
    state = opt.init(params)
    for b, weight in ((4, 3.0), (None, 1.0)):
        grads = {"a": array(1), "b": array(b)}
        params, state = opt.step(grads, state, params, weight=weight)
    np.testing.assert_allclose(params["b"], 1 - 4 * 3 / 4)


def test_apply_every_keeps_a_sum():
    """Until the next one that can be applied: a missing update stays `None`."""
    opt = eqopt.Chain(eqopt.ApplyEvery(2), eqopt.SGD(1.0))
    moves, _ = moved(opt, [*WINDOWS, (1, 1)])
    assert [b for b, _ in moves] == [20, 4, 0, 0, 6]


def test_groups_without_gradients_do_not_run():
    opt = eqopt.Partition(
        {"b": DECAYING, "rest": DECAYING},
        lambda _: {"a": "rest", "b": "b", "frozen": "rest"},
    )
    moves, state = moved(opt, [(None, None), (None, 2), (2, 2)])
    counts = {k: eqopt.tree.step_count(s) for k, s in state.inner_states.items()}
    assert counts == {"b": 3, "rest": 6}
    alone, _ = moved(opt, [(2, None)])
    assert moves[0] == [0, 0] and moves[1] == alone[0]


def test_galore_starts_with_the_first_gradient():
    opt = eqopt.GaLore(1e-2, rank=2)
    params = {"a": jnp.ones((6, 4)), "b": jnp.ones((6, 4))}
    g = jax.random.normal(jax.random.key(0), (6, 4))
    late, state = opt.step({"a": g, "b": None}, opt.init(params), params)
    late, state = opt.step({"a": g, "b": g}, state, late)
    assert jnp.abs(late["b"] - params["b"]).max() > 1e-3
