"""What `eval_params` returns if an average is where the docs advise against it."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt

from .subjects import assert_close, grads_of, params_of
from .test_eval_params import (
    MISPLACED,
    STEPS,
    WRAPPERS,
    Call,
    Probe,
    evaluated_and_stepped,
)


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        pytest.param(*pair, marks=() if "GPA" in pair else pytest.mark.slow)
        for pair in sorted(MISPLACED)
    ],
)
def test_an_average_inside_is_returned_as_it_is(outer, inner):
    """The wrapper returns it, although training has not gone through its parameters."""
    average = WRAPPERS[inner][0](Probe())
    opt = WRAPPERS[outer][0](average)
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
    make, expect = WRAPPERS["ParamEMA"]
    opt, params = make(stored), params_of(jnp.bfloat16)
    step, state, calls = eqx.filter_jit(opt.step), opt.init(params), []
    for i in range(STEPS):
        before = params["matrix"]
        params, state = step(grads_of(params, i, jnp.float32), state, params)
        pair = (np.asarray(x, np.float64) for x in (before, params["matrix"]))
        calls.append(Call(*pair))
    found = opt.eval_params(state, params)["matrix"]
    assert found.dtype == jnp.bfloat16
    average = np.asarray(expect(calls, calls[-1].after, 0, None))
    np.testing.assert_allclose(found.astype(jnp.float32), average, atol=2**-7)
    assert not np.allclose(average, calls[-1].after, atol=2**-4)
