"""`eval_params` returns the right parameters, for each wrapper and pair of wrappers.

A model of each wrapper computes the expected parameters from those that training went
through. It does not use the wrapper's state: it only models at which calls the inner
transformation steps, and what to evaluate with then. If averages nest, the outermost
one decides. At the end: averages where the documentation advises against them.
"""

import dataclasses
import itertools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

import eqopt
from eqopt import AbstractOptimizer, AbstractTransformation

from ..interpreter import interpreted
from .registry import concrete_transformations
from .row import one_in_two
from .rows.behaviour import ALONE, BRANCHING
from .subjects import assert_close, grads_of, params_of


STEPS = 4
MARK = 1000.0
MASK = {"matrix": True, "more": [False, None, True]}
LABELS = {"matrix": "a", "more": ["b", None, "a"]}
MASKED = [True, False, True]


class ProbeState(eqx.Module):
    count: Array


class Probe(AbstractTransformation):
    """Gradient descent that counts its steps in the parameters to evaluate with."""

    def init(self, params):
        return ProbeState(jnp.zeros((), jnp.int32))

    def update(self, updates, state, params=None, **extra):
        return jax.tree.map(lambda g: -0.1 * g, updates), ProbeState(state.count + 1)

    def eval_params(self, state, params):
        mark = MARK * state.count.astype(jnp.float32)
        return jax.tree.map(
            lambda p: p + mark if eqx.is_inexact_array(p) else p, params
        )


@dataclasses.dataclass
class Call:
    """One call of a wrapper: the parameters of one leaf before and after."""

    before: np.ndarray
    after: np.ndarray


# Models of wrappers. Each returns the value of a leaf to evaluate with, given the
# wrapper's calls so far, the leaf's value now, its index, and the inner model.


def _every_second(calls, now, leaf, inner):
    return inner(calls[1::2], now)


def _odd(calls, now, leaf, inner):
    return inner(calls[::2], now)


def _on(leaves):
    return lambda calls, now, leaf, inner: inner(calls, now) if leaves[leaf] else now


def halved(params):
    """Not a projection, but one whose effect is visible."""
    return jax.tree.map(lambda p: p / 2, params)


def _project(calls, now, leaf, inner):
    # The inner transformation made these parameters, before they were halved.
    evaluated = inner([Call(call.before, 2 * call.after) for call in calls], now)
    return now if evaluated is now else evaluated / 2


def _sam(calls, now, leaf, inner):
    pairs = zip(calls[::2], calls[1::2], strict=False)
    descents = [Call(first.before, second.after) for first, second in pairs]
    return inner(descents, calls[-1].before if len(calls) % 2 else now)


def _lookahead(calls, now, leaf, inner):
    synced = calls[1::2]
    return synced[-1].after if synced else START[leaf]


def _ema(calls, now, leaf, inner):
    if not calls:
        return inner(calls, now)
    weights = [0.5 ** (len(calls) - i) for i in range(len(calls))]
    total = sum(w * call.after for w, call in zip(weights, calls, strict=True))
    return total / sum(weights)


def _swa(calls, now, leaf, inner):
    late = [call.after for call in calls[1:]]
    return np.mean(late, axis=0) if late else inner(calls, now)


def _gpa(calls, now, leaf, inner, mu_x=0.5, mu_y=0.75):
    """Solves for $z$ from each change of the parameters."""
    z = START[leaf]
    for call in calls:
        x = z + (call.before - z) / mu_y
        z = (call.after - mu_y * mu_x * x) / (1 - mu_y * mu_x)
    return z + (now - z) / mu_y


def _ema_nesterov(calls, now, leaf, inner, beta=0.5, decay=0.5):
    """Solves for the result of the inner transformation from each change."""
    v = 0
    for call in calls:
        x = call.before - beta * v
        # after = new + beta * v', with v' = decay * v + (1 - decay) * (new - x).
        new = call.after - beta * (decay * v - (1 - decay) * x)
        new = new / (1 + beta * (1 - decay))
        v = decay * v + (1 - decay) * (new - x)
    return now - beta * v


def _schedule_free(calls, now, leaf, inner, b1=0.75):
    """Solves for $z$ from each change of the parameters."""
    z = START[leaf]
    for t, call in enumerate(calls, start=1):
        x = z + (call.before - z) / b1
        z = (call.after - b1 * (1 - 1 / t) * x) / (b1 / t + 1 - b1)
    return z + (now - z) / b1


START = [np.asarray(x, np.float64) for x in jax.tree.leaves(params_of())]
EXACT = eqopt.storage.Cast(jnp.float32)
WRAPPERS: dict[str, Callable[..., AbstractTransformation]] = {
    "ApplyIfFinite": lambda opt: eqopt.ApplyIfFinite(opt, 9),
    "Chain": lambda opt: eqopt.Chain(eqopt.Scale(0.5), opt),
    "Cautious": eqopt.Cautious,
    "CompressedMean": lambda opt: eqopt.CompressedMean(
        opt, None, eqopt.compression.TopK(1.0)
    ),
    "ConditionallyMask": lambda opt: eqopt.ConditionallyMask(opt, one_in_two),
    "ConditionallyTransform": lambda opt: eqopt.ConditionallyTransform(opt, one_in_two),
    "DiLoCo": lambda opt: eqopt.DiLoCo(opt, None, 2),
    "DistributeMatrices": lambda opt: eqopt.DistributeMatrices(opt, mesh=ALONE),
    "DynamicLossScale": lambda opt: eqopt.DynamicLossScale(opt, 2.0),
    "EMANesterov": lambda opt: eqopt.EMANesterov(opt, 0.5, 0.5),
    "Flatten": eqopt.Flatten,
    "GPA": lambda opt: eqopt.GPA(opt, 0.5, 0.75),
    "Lookahead": lambda opt: eqopt.Lookahead(opt, 2, 0.5),
    "Masked": lambda opt: eqopt.Masked(opt, MASK),
    "Mechanic": lambda opt: eqopt.Mechanic(opt, s_init=0.5),
    "MultiSteps": lambda opt: eqopt.MultiSteps(opt, 2),
    "NamedChain": lambda opt: eqopt.NamedChain(scale=eqopt.Scale(0.5), opt=opt),
    "Offload": lambda opt: eqopt.Offload(opt, 1),
    "OuterNesterov": lambda opt: eqopt.OuterNesterov(opt, 2),
    "ParamEMA": lambda opt: eqopt.ParamEMA(opt, 0.5),
    "Partition": lambda opt: eqopt.Partition({"a": opt, "b": eqopt.SGD(0.1)}, LABELS),
    "Process": lambda opt: eqopt.aggregating.Process(
        eqopt.Identity(), eqopt.Identity(), opt
    ),
    "Project": lambda opt: eqopt.Project(opt, halved),
    "RecordGradNorm": eqopt.RecordGradNorm,
    "SAM": eqopt.SAM,
    "SODA": eqopt.SODA,
    "SWA": lambda opt: eqopt.SWA(opt, 2),
    "ScheduleFree": lambda opt: eqopt.ScheduleFree(opt, 0.1, b1=0.75),
    "Scheduled": eqopt.Scheduled,
    "SelectiveTransform": lambda opt: eqopt.SelectiveTransform(opt, freeze_mask=MASK),
    "SkipStep": lambda opt: eqopt.SkipStep(opt, eqopt.SigmaRule()),
    "SplitRealAndImaginary": eqopt.SplitRealAndImaginary,
    "StoreState": lambda opt: eqopt.StoreState(opt, EXACT, lambda params: True),
    "ZeRO1": lambda opt: eqopt.ZeRO1(opt, mesh=ALONE),
}
# Models of those that do not just forward the call.
MODELS: dict[str, Callable] = {
    "ConditionallyMask": _odd,
    "ConditionallyTransform": _odd,
    "DiLoCo": _lookahead,
    "EMANesterov": _ema_nesterov,
    "GPA": _gpa,
    "Lookahead": _lookahead,
    "Masked": _on(MASKED),
    "MultiSteps": _every_second,
    "OuterNesterov": _lookahead,
    "ParamEMA": _ema,
    "Partition": _on(MASKED),
    "Project": _project,
    "SAM": _sam,
    "SWA": _swa,
    "ScheduleFree": _schedule_free,
    "SelectiveTransform": _on([not x for x in MASKED]),
}
# `Flatten` makes one vector, in which these cannot select leaves.
BY_LEAF = {"Masked", "Partition", "SelectiveTransform"}
AVERAGES = "DiLoCo", "EMANesterov", "GPA", "Lookahead", "OuterNesterov", "ScheduleFree"
# According to the documentation of the first, the second does not belong inside it.
MISPLACED = {
    *itertools.product(
        ["Cautious", "Mechanic", "SODA"], (*AVERAGES, "ParamEMA", "SWA")
    ),
}
# These are errors: see `test_pairs`.
REFUSED = {
    *((outer, "Offload") for outer in {*BRANCHING, "ZeRO1"}),
    *(("Flatten", inner) for inner in BY_LEAF),
}
# Not in the table of wrappers, for these reasons.
NOT_EVALUATED = {
    "StoreParams": "its parameters are of half precision: see `test_stored`",
    "ScaleByGaLore": "it shows its inner transformation no parameters",
    "ScaleBySophia": "its inner transformation estimates a Hessian",
}


def expected(names, calls, now, leaf):
    """The parameters of a leaf to evaluate with; the probe is innermost."""
    if not names:
        return now + MARK * len(calls)
    inner = lambda calls, now: expected(names[1:], calls, now, leaf)
    model = MODELS.get(names[0])
    return model(calls, now, leaf, inner) if model else inner(calls, now)


@interpreted
def evaluated_and_stepped(opt, grads, state, params):
    return opt.eval_params(state, params), opt.step(grads, state, params)


def check(names):
    opt = Probe()
    for name in reversed(names):
        opt = WRAPPERS[name](opt)
    params = params_of()
    calls = [[] for _ in START]
    state = opt.init(params)
    for i in range(STEPS + 1):
        old, grads = params, grads_of(params, i)
        evaluated, (params, state) = evaluated_and_stepped(opt, grads, state, old)
        assert jax.tree.structure(evaluated) == jax.tree.structure(params)
        leaves = zip(*map(jax.tree.leaves, (evaluated, old, params)), strict=True)
        for leaf, (found, *values) in enumerate(leaves):
            now, after = (np.asarray(x, np.float64) for x in values)
            want = expected(names, calls[leaf], now, leaf)
            np.testing.assert_allclose(found, want, 2e-5, 2e-5, err_msg=f"step {i}")
            calls[leaf].append(Call(now, after))


@pytest.mark.parametrize("name", WRAPPERS)
@pytest.mark.costly
def test_each_wrapper_gives_the_right_parameters(name):
    check([name])


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        pytest.param(*pair, marks=() if pair[0] == "ParamEMA" else pytest.mark.slow)
        for pair in itertools.product(WRAPPERS, WRAPPERS)
        if pair not in MISPLACED | REFUSED and MODELS.keys() & pair
    ],
)
@pytest.mark.costly
def test_each_pair_gives_the_right_parameters(outer, inner):
    """Two that forward the call say nothing new."""
    check([outer, inner])


def test_a_fallback_is_evaluated():
    params, opt = params_of(), eqopt.Muon(0.1, fallback=eqopt.ParamEMA(Probe(), 0.5))
    step, state = eqx.filter_jit(opt.step), opt.init(params)
    seen = []
    for i in range(2):
        params, state = step(grads_of(params, i), state, params)
        seen.append(params["more"][0])
    evaluated = opt.eval_params(state, params)
    np.testing.assert_array_equal(evaluated["matrix"], params["matrix"])
    np.testing.assert_allclose(
        evaluated["more"][0], (seen[0] + 2 * seen[1]) / 3, 1e-5, 1e-6
    )


def holds_transformations(cls):
    """Whether it contains transformations, except for one in place of a number."""
    fields = [x for x in dataclasses.fields(cls) if x.name != "weight_decay"]
    return any("Transformation" in str(field.type) for field in fields)


def test_each_class_that_holds_transformations_is_tested():
    """A new wrapper must define `eval_params`, and be in the table."""
    holders = {
        cls
        for cls in concrete_transformations()
        if holds_transformations(cls) and not issubclass(cls, AbstractOptimizer)
    }
    for cls in holders:
        if cls.__name__ not in NOT_EVALUATED:
            assert cls.eval_params is not AbstractTransformation.eval_params, cls
    assert {cls.__name__ for cls in holders} - {*NOT_EVALUATED} == {*WRAPPERS}


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        pytest.param(*pair, marks=() if "GPA" in pair else pytest.mark.slow)
        for pair in sorted(MISPLACED)
    ],
)
def test_an_average_inside_is_returned_as_it_is(outer, inner):
    """The wrapper returns it, although training has not gone through its parameters."""
    average = WRAPPERS[inner](Probe())
    opt = WRAPPERS[outer](average)
    params = params_of()
    state = opt.init(params)
    is_own = lambda x: isinstance(x, type(average.init(params)))
    evaluated = old = params
    for i in range(STEPS):
        [own] = filter(is_own, jax.tree.leaves(state, is_leaf=is_own))
        before, old = average.eval_params(own, params), params
        evaluated, (params, state) = evaluated_and_stepped(
            opt, grads_of(params, i), state, old
        )
        assert_close(evaluated, before)
    assert not np.allclose(evaluated["matrix"], old["matrix"])


@pytest.mark.slow
def test_an_average_around_stored_parameters_averages_the_visible_ones():
    """Inside `StoreParams`, it would average the parameters of full precision."""
    stored = eqopt.StoreParams(eqopt.SGD(0.1), eqopt.storage.SplitMasterWeights())
    opt, params = WRAPPERS["ParamEMA"](stored), params_of(jnp.bfloat16)
    step, state, calls = eqx.filter_jit(opt.step), opt.init(params), []
    for i in range(STEPS):
        before = params["matrix"]
        params, state = step(grads_of(params, i, jnp.float32), state, params)
        pair = (np.asarray(x, np.float64) for x in (before, params["matrix"]))
        calls.append(Call(*pair))
    found = opt.eval_params(state, params)["matrix"]
    assert found.dtype == jnp.bfloat16
    average = np.asarray(_ema(calls, calls[-1].after, 0, None))
    np.testing.assert_allclose(found.astype(jnp.float32), average, atol=2**-7)
    assert not np.allclose(average, calls[-1].after, atol=2**-4)
