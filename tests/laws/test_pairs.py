"""Every wrapper inside of every other one, guards round all of them, and resuming."""

import io
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import eqopt

from .row import one_in_two
from .rows.behaviour import ALONE
from .subjects import assert_close, assert_equal, avals, grads_of, params_of


pytestmark = pytest.mark.slow


LABELS = {"matrix": "a", "more": ["b", None, "a"]}
MASK = {"matrix": True, "more": [False, None, True]}
WRAPPERS = {
    "ApplyIfFinite": lambda opt: eqopt.ApplyIfFinite(opt, 9),
    "ConditionallyMask": lambda opt: eqopt.ConditionallyMask(opt, one_in_two),
    "ConditionallyTransform": lambda opt: eqopt.ConditionallyTransform(opt, one_in_two),
    "DynamicLossScale": eqopt.DynamicLossScale,
    "Flatten": eqopt.Flatten,
    "Lookahead": lambda opt: eqopt.Lookahead(opt, 2, 0.5),
    "Masked": lambda opt: eqopt.Masked(opt, MASK),
    "Mechanic": eqopt.Mechanic,
    "MultiSteps": lambda opt: eqopt.MultiSteps(opt, 2),
    "ParamEMA": eqopt.ParamEMA,
    "Partition": lambda opt: eqopt.Partition({"a": opt, "b": eqopt.SGD(0.1)}, LABELS),
    "SAM": eqopt.SAM,
    "SWA": lambda opt: eqopt.SWA(opt, 2),
    "ScheduleFree": lambda opt: eqopt.ScheduleFree(opt, 0.1),
    "Scheduled": eqopt.Scheduled,
    "SelectiveTransform": lambda opt: eqopt.SelectiveTransform(opt, freeze_mask=MASK),
    "SkipStep": lambda opt: eqopt.SkipStep(opt, eqopt.SigmaRule()),
    "SplitRealAndImaginary": eqopt.SplitRealAndImaginary,
    "ZeRO1": lambda opt: eqopt.ZeRO1(opt, mesh=ALONE),
}
# One vector has no leaves to be told apart.
BY_LEAF = {"Masked", "Partition", "SelectiveTransform"}
GUARDS = {
    "ApplyIfFinite": WRAPPERS["ApplyIfFinite"],
    "DynamicLossScale": WRAPPERS["DynamicLossScale"],
    "MultiSteps": lambda opt: eqopt.MultiSteps(
        opt, 2, should_skip_update_fn=eqopt.SkipNotFinite()
    ),
    "SkipStep": WRAPPERS["SkipStep"],
}
ADAM = eqopt.Adam(0.01)


@eqx.filter_jit
def step(opt, grads, state, params):
    return opt.step(grads, state, params, value=jnp.ones(()))


@pytest.mark.parametrize(
    ("outer", "inner"), list(itertools.product(WRAPPERS, WRAPPERS)), ids=str
)
def test_pairs_compose(outer, inner):
    make = lambda: WRAPPERS[outer](WRAPPERS[inner](ADAM))
    params = params_of()
    if outer == "Flatten" and inner in BY_LEAF:
        with pytest.raises(ValueError, match="another tree structure than `params`"):
            make().init(params)
        return
    opt = make()
    state = opt.init(params)
    before = avals(state)
    for i in range(3):
        params, state = step(opt, grads_of(params, i), state, params)
        assert avals(state) == before
    grads = grads_of(params, 3)
    stepped, stepped_state = step(opt, grads, state, params)
    updates, updated_state = eqx.filter_jit(opt.update)(
        grads, state, params, value=jnp.ones(())
    )
    assert_close(stepped, eqopt.apply_updates(params, updates))
    assert_close(stepped_state, updated_state)
    averaged = opt.eval_params(stepped_state, stepped)
    assert avals(averaged) == avals(params)
    assert all(bool(jnp.all(jnp.isfinite(x))) for x in jax.tree.leaves(averaged))


@pytest.mark.parametrize(
    ("guard", "inner"),
    [
        pytest.param(
            guard, inner, marks=[] if inner == "Lookahead" else pytest.mark.slow
        )
        for guard, inner in itertools.product(GUARDS, WRAPPERS)
    ],
)
@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
def test_a_guard_keeps_all_finite(guard, inner, bad):
    """Whatever the step in which one number of one leaf is not finite."""
    opt = GUARDS[guard](WRAPPERS[inner](ADAM))
    for when in range(4):
        params = params_of()
        state = opt.init(params)
        for i in range(5):
            grads = grads_of(params, i)
            if i == when:
                grads["more"][0] = grads["more"][0].at[1].set(bad)
            params, state = step(opt, grads, state, params)
        for x in jax.tree.leaves(eqx.filter((params, state), eqx.is_inexact_array)):
            assert bool(jnp.all(jnp.isfinite(x)))


@pytest.mark.parametrize("name", WRAPPERS)
def test_resumes_after_any_step(name):
    opt, params = WRAPPERS[name](ADAM), params_of()
    trail = [(params, opt.init(params))]
    for i in range(4):
        params, state = trail[-1]
        trail.append(step(opt, grads_of(params, i), state, params))
    like = eqx.filter_eval_shape(lambda: (params_of(), opt.init(params_of())))
    for i, saved in enumerate(trail[:-1]):
        file = io.BytesIO()
        eqx.tree_serialise_leaves(file, saved)
        file.seek(0)
        params, state = eqx.tree_deserialise_leaves(file, like)
        resumed = step(opt, grads_of(params, i), state, params)
        assert_equal(resumed, trail[i + 1])
