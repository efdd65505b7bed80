import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt


def bits(tree):
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(tree)]


@pytest.mark.parametrize("call", ["update", "step"])
def test_inner_runs_once_in_k(call):
    """Counted when the program runs, not when it is traced."""
    calls = []

    class Counted(eqopt.AbstractTransformation):
        def init(self, params):
            return None

        def update(self, updates, state, params=None, **extra):
            jax.debug.callback(lambda: calls.append(1))
            return updates, state

    opt, params = eqopt.MultiSteps(Counted(), 4), jnp.ones(3)
    state, method = opt.init(params), jax.jit(getattr(opt, call))
    for _ in range(12):
        _, state = method(params, state, params)
    jax.effects_barrier()
    assert len(calls) == 3
    assert state.gradient_step == 3


def test_values_of_the_schedule_are_rounded():
    """The second one is 1.9999999, because this schedule computes in float32."""
    schedule = eqopt.schedules.Linear(1.0, 50.0, 49)
    assert schedule(jnp.array(1)) < 2
    opt, params = eqopt.MultiSteps(eqopt.SGD(1.0), schedule), jnp.zeros(())
    state, has_updated = opt.init(params), []
    assert not opt.has_updated(state)
    for _ in range(6):
        params, state = opt.step(params, state, params)
        has_updated.append(bool(opt.has_updated(state)))
    assert has_updated == [True, False, True, False, False, True]


def test_skipped_mini_steps_leave_no_trace():
    too_large = lambda g, step, params: (jnp.max(g) > 10, {"largest": jnp.max(g)})
    skipping = eqopt.MultiSteps(eqopt.Adam(0.1), 2, should_skip_update_fn=too_large)
    plain = eqopt.MultiSteps(eqopt.Adam(0.1), 2)
    params = expected = jnp.ones(3)
    state, plain_state = skipping.init(params), plain.init(params)
    for size in (1.0, 99.0, 2.0, jnp.inf, 3.0, 4.0):
        grads = jnp.full(3, size)
        params, state = skipping.step(grads, state, params)
        assert state.skip_state["largest"] == size
        if size < 10:
            expected, plain_state = plain.step(grads, plain_state, expected)
        assert bits(params) == bits(expected)
        assert state.mini_step == plain_state.mini_step
    assert state.gradient_step == 2


def test_diagnostics_keep_their_dtypes():
    """Also if gradients are wider than the parameters, as in `DynamicLossScale`."""
    rule = lambda g, step, params: (jnp.max(g) > 10, {"largest": jnp.max(g), "n": step})
    inner = eqopt.MultiSteps(eqopt.SGD(1.0), 2, should_skip_update_fn=rule)
    params, dtype = jnp.ones(3, jnp.bfloat16), lambda x: x.dtype
    for opt in (inner, eqopt.DynamicLossScale(inner)):
        state = opt.init(params)
        _, new = jax.eval_shape(opt.step, jnp.ones(3), state, params)
        assert jax.tree.map(dtype, new) == jax.tree.map(dtype, state)


def test_no_step_in_a_skipped_mini_step():
    """Not even right after a step, when no mini-step has been accumulated yet."""
    rule = eqopt.SkipNotFinite()
    opt = eqopt.MultiSteps(eqopt.SGD(1.0), 1, should_skip_update_fn=rule)
    params = jnp.ones(2)
    state, step = opt.init(params), jax.jit(opt.step)
    has_updated = []
    for size in (jnp.nan, 1.0, jnp.nan, 1.0):
        params, state = step(jnp.full(2, size), state, params)
        has_updated.append(bool(opt.has_updated(state)))
    assert has_updated == [False, True, False, True]


def test_dtypes_of_the_accumulator():
    """Sums are in float32 by default, and updates have the dtype of the gradients."""
    params = jnp.ones(3, jnp.bfloat16)
    opt = eqopt.MultiSteps(eqopt.SGD(1.0), 2)
    state = opt.init(params)
    assert state.acc_grads.dtype == jnp.float32
    updates, state = opt.update(params, state, params)
    assert updates.dtype == jnp.bfloat16
    for given, expected in ((None, jnp.float32), (jnp.bfloat16, jnp.bfloat16)):
        other = eqopt.MultiSteps(eqopt.SGD(1.0), 2, accumulator_dtype=given)
        assert other.init(params).acc_grads.dtype == expected
    assert opt.init(jnp.ones(3, jnp.complex64)).acc_grads.dtype == jnp.complex64


@pytest.mark.parametrize("place", [0, 1, 2])
def test_gradients_of_weight_zero_leave_no_trace(place):
    opt = eqopt.MultiSteps(eqopt.SGD(1.0), 3)
    grads, weights = [1.0, 2.0, 4.0], [3.0, 1.0, 2.0]
    grads[place], weights[place] = jnp.nan, 0.0
    params, state = jnp.zeros(()), opt.init(jnp.zeros(()))
    for g, weight in zip(grads, weights, strict=True):
        params, state = opt.step(jnp.asarray(g), state, params, weight=weight)
    pairs = [(g, w) for g, w in zip(grads, weights, strict=True) if w]
    expected = -sum(g * w for g, w in pairs) / sum(w for _, w in pairs)
    np.testing.assert_allclose(params, expected, rtol=1e-6)


@pytest.mark.parametrize("outer_mean", [True, False])
@pytest.mark.parametrize("inner_mean", [True, False])
def test_nested_weights_count_once(outer_mean, inner_mean):
    """A step of the inner optimizer has the weight of all its mini-batches."""
    inner = eqopt.MultiSteps(eqopt.SGD(1.0), 2, use_grad_mean=inner_mean)
    opt = eqopt.MultiSteps(inner, 2, use_grad_mean=outer_mean)
    params, state = jnp.zeros(()), opt.init(jnp.zeros(()))
    for g, weight in ((1.0, 3.0), (2.0, 1.0), (3.0, 1.0), (4.0, 3.0)):
        params, state = opt.step(jnp.asarray(g), state, params, weight=weight)
    total = 3.0 + 2.0 + 3.0 + 12.0
    parts = (8.0 if outer_mean else 2.0) if inner_mean else 1.0
    np.testing.assert_allclose(params, -total / parts, rtol=1e-6)


def test_weight_is_one_number():
    opt = eqopt.MultiSteps(eqopt.SGD(1.0), 2)
    state = opt.init(jnp.zeros(()))
    message = r"`weight` must be one real number, .* shape \(2,\)"
    with pytest.raises(ValueError, match=message):
        opt.step(jnp.zeros(()), state, jnp.zeros(()), weight=jnp.ones(2))
    with pytest.raises(ValueError, match=r"`weight` must be in \[0, inf\), .* -1"):
        opt.step(jnp.zeros(()), state, jnp.zeros(()), weight=-1)
