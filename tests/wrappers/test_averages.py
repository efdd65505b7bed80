"""Averages of parameters, against NumPy in float64 and against torch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt


START = np.array([2.0, -1.0, 0.5])


def noisy(p, t):
    return (1 + t % 3) * (p - np.arange(3.0))


def trajectory(opt, steps, dtype=jnp.float32):
    """The parameters at first and after each step, and the averages at these times."""
    params = jnp.asarray(START, dtype)
    state, step = opt.init(params), jax.jit(opt.step)
    seen, averages = [params], [opt.eval_params(state, params)]
    for t in range(steps):
        grads = jnp.asarray(noisy(np.asarray(params, float), t), dtype)
        params, state = step(grads, state, params)
        seen.append(params)
        averages.append(opt.eval_params(state, params))
    return np.asarray(jnp.stack(seen), float), np.asarray(jnp.stack(averages), float)


def weighted(seen, betas):
    """The debiased average in float64, by the weight of each value."""
    n = len(seen)
    w = [(1 - betas[i]) * np.prod(betas[i + 1 : n]) for i in range(n)]
    return np.tensordot(w, seen, 1) / sum(w)


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.9, 0.9999])
@pytest.mark.costly
def test_ema_by_hand(decay):
    seen, averages = trajectory(eqopt.ParamEMA(eqopt.SGD(0.2, 0.5), decay), 12)
    np.testing.assert_array_equal(averages[0], START)
    np.testing.assert_array_equal(averages[1], seen[1])
    for t in range(1, 13):
        expected = weighted(seen[1 : t + 1], [decay] * t)
        np.testing.assert_allclose(averages[t], expected, 2e-6, 2e-7)


@pytest.mark.parametrize("decay", [0.5, 0.9999])
def test_biased_ema_by_hand(decay):
    opt = eqopt.ParamEMA(eqopt.Adam(0.2), decay, debias=False)
    seen, averages = trajectory(opt, 12)
    expected = START
    for t in range(1, 13):
        expected = decay * expected + (1 - decay) * seen[t]
        np.testing.assert_allclose(averages[t], expected, 2e-6)


def test_a_schedule_is_debiased_by_the_product():
    betas = [0.0, 0.3, 0.9, 0.99, 0.5, 0.9]
    schedule = lambda t: jnp.asarray(betas, jnp.float32)[t]
    seen, averages = trajectory(eqopt.ParamEMA(eqopt.SGD(0.2), schedule), 6)
    for t in range(1, 7):
        expected = weighted(seen[1 : t + 1], betas[:t])
        np.testing.assert_allclose(averages[t], expected, 2e-6)


def test_before_any_value_has_a_weight():
    """A decay of 1 keeps the parameters in place of the average; nothing is 0 / 0."""
    schedule = lambda t: jnp.where(t < 2, 1.0, 0.5)
    seen, averages = trajectory(eqopt.ParamEMA(eqopt.SGD(0.2), schedule), 4)
    np.testing.assert_array_equal(averages[:4], seen[:4])
    np.testing.assert_allclose(averages[4], weighted(seen[3:5], [0.5, 0.5]), 1e-6)


@pytest.mark.parametrize(("start", "period"), [(1, 1), (3, 1), (2, 3), (5, 2)])
@pytest.mark.costly
def test_swa_by_hand(start, period):
    seen, averages = trajectory(eqopt.SWA(eqopt.SGD(0.2, 0.5), start, period), 11)
    for t in range(12):
        chosen = seen[start : t + 1 : period]
        expected = chosen.mean(0) if len(chosen) else seen[t]
        np.testing.assert_allclose(averages[t], expected, 2e-6)


def test_an_average_in_float32_of_bfloat16():
    """It averages the parameters after they are rounded."""
    seen, averages = trajectory(eqopt.ParamEMA(eqopt.SGD(0.2), 0.5), 6, jnp.bfloat16)
    exact = weighted(seen[1:], [0.5] * 6)
    np.testing.assert_array_equal(averages[6], jnp.asarray(exact, jnp.bfloat16))
    params = jnp.asarray(START, jnp.bfloat16)
    opt = eqopt.ParamEMA(eqopt.SGD(0.2), 0.5)
    _, state = opt.step(params, opt.init(params), params)
    assert state.average.dtype == jnp.float32
    assert opt.eval_params(state, params).dtype == jnp.bfloat16


@pytest.mark.parametrize("wrap", [eqopt.ParamEMA, lambda inner: eqopt.SWA(inner, 1)])
def test_inside_store_params_an_average_is_not_of_rounded_parameters(wrap):
    params = jnp.ones(3, jnp.bfloat16)
    storage = eqopt.storage.SplitMasterWeights()
    opt = eqopt.StoreParams(wrap(eqopt.SGD(1.0)), storage)
    small = jnp.full(3, -1e-3, jnp.bfloat16)
    new, state = jax.jit(opt.step)(small, opt.init(params), params)
    assert (new == 1).all()
    average = state.inner_state.average
    np.testing.assert_allclose(average, 1 - np.asarray(small, float), 1e-6)
