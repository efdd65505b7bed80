"""Training in float16: scales that grow and shrink, and gradients that underflow."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt

from .test_skip_step import PARAMS, grads


def oracle(is_finite, scale, interval, growth, backoff, least):
    """The scales after each step."""
    good, scales = 0, []
    for finite in is_finite:
        good = good + 1 if finite else 0
        if not finite:
            scale = max(scale * backoff, least)
        elif good == interval:
            scale, good = scale * growth, 0
        scales.append(scale)
    return scales


@pytest.mark.parametrize("settings", [(8.0, 3, 2.0, 0.5, 1.0), (3.0, 2, 5.0, 0.3, 0.7)])
@pytest.mark.parametrize("call", ["update", "step"])
@pytest.mark.costly
def test_the_scale_by_hand(settings, call):
    pattern = [x == "+" for x in "++++-++------++++++"]
    opt = eqopt.DynamicLossScale(eqopt.SGD(0.1), *settings)
    state, method, scales = opt.init(PARAMS), jax.jit(getattr(opt, call)), []
    for good in pattern:
        _, state = method(grads(None if good else jnp.nan), state, PARAMS)
        scales.append(float(state.loss_scale))
        assert state.last_finite == good
    np.testing.assert_allclose(scales, oracle(pattern, *settings), 1e-6)
    assert state.total_notfinite == pattern.count(False)


def test_the_scale_stays_normal():
    opt = eqopt.DynamicLossScale(eqopt.SGD(0.1), 2.0**125, 1)
    state = opt.init(PARAMS)
    for expected in (126, 126, 126):
        params, state = opt.step(grads(size=2.0**100), state, PARAMS)
        assert state.loss_scale == 2.0**expected
    np.testing.assert_allclose(params["a"], 1 - 0.1 * 2.0**-26, 1e-7)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
def test_the_scaled_loss(dtype):
    opt = eqopt.DynamicLossScale(eqopt.SGD(0.1))
    scaled = opt.scale_loss(jnp.asarray(100.0, dtype), opt.init(PARAMS))
    assert scaled.dtype == jnp.float32
    assert scaled == 100 * 2.0**15  # which would overflow in float16


class Spy(eqopt.AbstractTransformation):
    seen: list = eqx.field(static=True)

    def init(self, params):
        return None

    def update(self, updates, state, params=None, **extra):
        self.seen.append((updates, extra))
        return updates, None


@pytest.mark.parametrize("call", ["update", "step"])
def test_the_inner_transformation_gets_float32_gradients(call):
    """Divided in float16, a gradient of 2e-8 would become zero."""
    spy = Spy([])
    opt = eqopt.DynamicLossScale(spy)
    params = {"w": jnp.ones(2, jnp.float16)}
    g = {"w": jnp.full(2, 2e-8 * 2**15, jnp.float16)}
    with jax.disable_jit():
        result, _ = getattr(opt, call)(g, opt.init(params), params, value=3.0)
    (seen, extra), *_ = spy.seen
    assert seen["w"].dtype == jnp.float32
    np.testing.assert_allclose(seen["w"], 2e-8, 1e-3)
    assert extra == {"value": 3.0}
    assert result["w"].dtype == jnp.float16


@pytest.mark.parametrize("name", ["grad", "previous_grad"])
def test_other_gradients_are_divided_too(name):
    """As they come from the same function of the scaled loss."""
    search = eqopt.Chain(eqopt.SGD(1.0), eqopt.ScaleByBacktrackingLinesearch(15))
    mars = eqopt.CorrectByMARS(is_approx=False, max_norm=None)
    inner = search if name == "grad" else mars
    p = jnp.array([1.0, 2.0])
    loss = {"value": jnp.sum(p**4), "value_fn": lambda p: jnp.sum(p**4)}
    extra = loss if name == "grad" else {}
    own, other = 4 * p**3, (4 if name == "grad" else 2) * p**3
    expected, _ = inner.step(own, inner.init(p), p, **{name: other}, **extra)
    opt = eqopt.DynamicLossScale(inner, 8.0)
    scaled = {name: 8 * other}
    found, _ = opt.step(8 * own, opt.init(p), p, **scaled, **extra)
    np.testing.assert_allclose(found, expected, 1e-6)


def test_the_order_of_the_scales():
    make = lambda **scales: eqopt.DynamicLossScale(eqopt.SGD(0.1), **scales)
    for first in (0.25, 2.0**127, jnp.inf):
        with pytest.raises(ValueError, match=r"`init_scale` .*, but is .* Lower `min_"):
            make(init_scale=first)
    assert make(init_scale=0.25, min_scale=0.25).min_scale == 0.25
    # Values that are traced are not known.
    assert jax.jit(lambda s: make(init_scale=s).init(PARAMS).loss_scale)(0.25) == 0.25
