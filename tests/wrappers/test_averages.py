"""Averages of parameters, against NumPy in float64 and against torch."""

import functools

import jax
import jax.numpy as jnp
import jax.random as jr
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


def test_several_averages():
    """Inside one another; each is an average of the same parameters."""
    decays, seen = (0.5, 0.9, 0.99), [START]
    opt = functools.reduce(eqopt.ParamEMA, decays, eqopt.SGD(0.2, 0.5))
    params = jnp.asarray(START)
    state, step = opt.init(params), jax.jit(opt.step)
    for t in range(6):
        params, state = step(noisy(params, t), state, params)
        seen.append(np.asarray(params, float))
    for decay in reversed(decays):
        average = opt.eval_params(state, params)
        np.testing.assert_allclose(average, weighted(seen[1:], [decay] * 6), 2e-6)
        opt, state = opt.inner, state.inner_state
    np.testing.assert_array_equal(opt.eval_params(state, params), params)


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


@pytest.mark.parametrize(
    "wrap", [eqopt.ParamEMA, lambda inner: eqopt.SWA(inner, 2, 2)], ids=["EMA", "SWA"]
)
@pytest.mark.parametrize(
    "inner",
    [eqopt.AdamW(0.1), eqopt.Lookahead(eqopt.SGD(0.1), 2, 0.5)],
    ids=lambda x: type(x).__name__,
)
@pytest.mark.slow
def test_an_average_does_not_change_training(wrap, inner):
    seen, _ = trajectory(wrap(inner), 6)
    np.testing.assert_allclose(seen, trajectory(inner, 6)[0], 2e-6, 2e-7)


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


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["EMA", "biased EMA", "SWA"])
def test_like_torch(kind):
    torch = pytest.importorskip("torch")
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    linear = torch.nn.Linear(3, 2)
    multi = None if kind == "SWA" else get_ema_multi_avg_fn(0.9)
    theirs = AveragedModel(linear, multi_avg_fn=multi)
    as_jax = lambda m: [jnp.asarray(p.detach().numpy().copy()) for p in m.parameters()]
    params = as_jax(linear)
    inner = eqopt.SGD(0.1, 0.9)
    opt = {
        # Torch's averages begin with the first parameters that they get.
        "EMA": eqopt.ParamEMA(inner, lambda t: jnp.where(t == 0, 0, 0.9)),
        "biased EMA": eqopt.ParamEMA(inner, 0.9, debias=False),
        "SWA": eqopt.SWA(inner, 1),
    }[kind]
    if kind == "biased EMA":
        theirs.update_parameters(linear)
    state, sgd = opt.init(params), torch.optim.SGD(linear.parameters(), 0.1, 0.9)
    for i in range(10):
        grads = [jr.normal(jr.key(10 * i + j), p.shape) for j, p in enumerate(params)]
        for p, g in zip(linear.parameters(), grads, strict=True):
            p.grad = torch.tensor(np.asarray(g))
        sgd.step()
        theirs.update_parameters(linear)
        params, state = jax.jit(opt.step)(grads, state, params)
        ours = opt.eval_params(state, params)
        for a, b in zip(ours, as_jax(theirs.module), strict=True):
            np.testing.assert_allclose(a, b, 1e-5, 1e-6)
