"""Every wrapper inside every other one, guards around all of them, and resuming."""

import io
import itertools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt

from ..interpreter import interpreted
from .rows.behaviour import BRANCHING
from .subjects import all_finite, assert_close, assert_equal, avals, grads_of, params_of
from .test_eval_params import BY_LEAF, WRAPPERS as EVALUATED


pytestmark = pytest.mark.slow


# Those with a single inner transformation that do more than pass it on.
OTHERS = {"Chain", "CompressedMean", "NamedChain", "Process", "RecordGradNorm"}
WRAPPERS = {
    name: make
    for name, make in EVALUATED.items()
    if name not in {*OTHERS, "StoreState"}
}
GUARDS = {
    "ApplyIfFinite": WRAPPERS["ApplyIfFinite"],
    "DynamicLossScale": WRAPPERS["DynamicLossScale"],
    "MultiSteps": lambda opt: eqopt.MultiSteps(
        opt, 2, should_skip_update_fn=eqopt.SkipNotFinite()
    ),
    "SkipStep": WRAPPERS["SkipStep"],
}
ADAM = eqopt.Adam(0.01)


class Pair(NamedTuple):
    """A wrapper inside another one."""

    outer: str
    inner: str

    @property
    def name(self):
        return f"{self.outer}({self.inner})"


def over(outer, but=()):
    """Runs a test on all pairs whose outer wrapper is one of these."""
    inner = [name for name in WRAPPERS if name not in but]
    pairs = [Pair(*names) for names in itertools.product(outer, inner)]
    return pytest.mark.parametrize("row", pairs, ids=lambda pair: pair.name)


VALUE = np.float32(1)


@interpreted
def both(opt, grads, state, params):
    """What `update` and `step` return, in one program that all tests share."""
    args = grads, state, params
    return opt.update(*args, value=VALUE), opt.step(*args, value=VALUE)


@over(WRAPPERS)
def test_pairs_compose(row):
    make = lambda: WRAPPERS[row.outer](WRAPPERS[row.inner](ADAM))
    params = params_of()
    if row.outer == "Flatten" and row.inner in BY_LEAF:
        with pytest.raises(ValueError, match="another tree structure than `params`"):
            make().init(params)
        return
    if row.name == "ZeRO1(Offload)":
        with pytest.raises(ValueError, match="Put `Offload` outside"):
            make().init(params)
        return
    opt = make()
    state = opt.init(params)
    if row.inner == "Offload" and row.outer in BRANCHING:
        with pytest.raises(ValueError, match="Put `Offload` outside"):
            both(opt, grads_of(params, 0), state, params)
        return
    before = avals(state)
    for i in range(4):
        updated, stepped = both(opt, grads_of(params, i), state, params)
        assert avals(updated[1]) == avals(stepped[1]) == before
        assert_close(stepped[0], eqopt.apply_updates(params, updated[0]))
        assert_close(stepped[1], updated[1])
        params, state = stepped
    averaged = opt.eval_params(state, params)
    assert avals(averaged) == avals(params)
    assert all_finite(averaged)


@over(GUARDS, but={"Offload"})
def test_a_guard_keeps_all_finite(row):
    """One element of one leaf is not finite, in any of the steps."""
    opt = GUARDS[row.outer](WRAPPERS[row.inner](ADAM))
    for when in range(4):
        params = params_of()
        state = opt.init(params)
        for i in range(5):
            grads = grads_of(params, i)
            if i == when:
                vector = np.array(grads["more"][0])
                vector[1] = np.inf if when % 2 else np.nan
                grads["more"][0] = jnp.asarray(vector)
            _, (params, state) = both(opt, grads, state, params)
        for x in jax.tree.leaves(eqx.filter((params, state), eqx.is_inexact_array)):
            assert np.all(np.isfinite(x))


@pytest.mark.parametrize("name", WRAPPERS)
def test_resumes_after_any_step(name):
    opt, params = WRAPPERS[name](ADAM), params_of()
    trail = [(params, opt.init(params))]
    for i in range(4):
        params, state = trail[-1]
        trail.append(both(opt, grads_of(params, i), state, params)[1])
    like = eqx.filter_eval_shape(lambda: (params_of(), opt.init(params_of())))
    for i, saved in enumerate(trail[:-1]):
        file = io.BytesIO()
        eqx.tree_serialise_leaves(file, saved)
        file.seek(0)
        params, state = eqx.tree_deserialise_leaves(file, like)
        _, resumed = both(opt, grads_of(params, i), state, params)
        assert_equal(resumed, trail[i + 1])
