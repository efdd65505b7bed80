"""Measurements of the updates that pass by."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt


def is_long(updates):
    return eqopt.tree.norm(updates) > 1.0


class Largest(eqx.Module):
    """The largest ratio so far, of updates to parameters."""

    def init(self, params):
        return jnp.zeros(())

    def update(self, updates, state, params=None, **extra):
        ratio = eqopt.tree.norm(updates) / eqopt.tree.norm(params)
        ratio *= extra.get("factor", 1.0)
        largest = jnp.maximum(state, ratio)
        return largest, largest


def test_what_is_measured_where():
    """Before and after clipping. `jit` returns the names in sorted order."""
    measures = {"z": eqopt.tree.norm, "a": eqopt.MeasureWithEMA(is_long, 0.9)}
    opt = eqopt.Chain(
        eqopt.Monitor(measures),
        eqopt.ClipByGlobalNorm(1.0),
        eqopt.Snapshot("after", eqopt.tree.norm),
        eqopt.SGD(0.1),
    )
    params = jnp.array([3.0, 4.0])
    state = opt.init(params)
    step = eqx.filter_jit(lambda opt, g, s, p: opt.step(g, s, p))
    for name in ("z", "a", "after"):
        assert eqopt.tree.get(state, name) == 0
    for grads, before, after, ema in (
        (params, 5.0, 1.0, 1.0),
        (params / 10, 0.5, 0.5, 0.09 / 0.19),
    ):
        new, state = step(opt, grads, state, params)
        np.testing.assert_allclose(eqopt.tree.get(state, "z"), before, 1e-6)
        np.testing.assert_allclose(eqopt.tree.get(state, "after"), after, 1e-6)
        np.testing.assert_allclose(eqopt.tree.get(state, "a"), ema, 1e-6)
        np.testing.assert_allclose(new, params - 0.1 * after * params / 5, 1e-6)


def test_a_measure_with_a_state():
    opt, params = eqopt.Monitor({"ratio": Largest()}), jnp.array([3.0, 4.0])
    state = opt.init(params)
    for factor, expected in ((1.0, 1.0), (2.0, 2.0), (0.5, 2.0)):
        _, state = opt.update(params, state, params, factor=factor)
        np.testing.assert_allclose(eqopt.tree.get(state, "ratio"), expected, 1e-6)


def test_the_updates_themselves_can_be_donated():
    opt = eqopt.Snapshot("all", lambda updates: updates)
    params = jax.jit(lambda: {"w": jnp.ones(3), "n": jnp.ones(2)})()
    state = opt.init(params)
    donating = jax.jit(opt.step, donate_argnums=(0, 1, 2))
    for _ in range(2):
        grads = jax.tree.map(lambda p: p / 2, params)
        params, state = donating(grads, state, params)
    np.testing.assert_allclose(state.measurement["all"]["w"], 0.75)
    updates, state = opt.update(params, state)  # eagerly, too
    jax.tree.map(lambda x: x.delete(), updates)
    assert (state.measurement["all"]["w"] == 2.25).all()


@pytest.mark.parametrize("decay", [0.0, 0.5])
@pytest.mark.parametrize("debias", [True, False])
def test_averages(decay, debias):
    measure = eqopt.MeasureWithEMA(jnp.max, decay, debias, jnp.float32)
    state, ema = measure.init(jnp.ones(2, jnp.bfloat16)), 0.0
    assert eqopt.tree.get(state, "ema").dtype == jnp.float32
    for i, value in enumerate([1.0, 3.0, -2.0], start=1):
        average, state = measure.update(jnp.full(2, value, jnp.bfloat16), state)
        ema = decay * ema + (1 - decay) * value
        expected = ema / (1 - decay**i) if debias else ema
        np.testing.assert_allclose(average, expected, 1e-6)


def test_errors():
    opt = eqopt.Snapshot("all", lambda updates: updates)
    with pytest.raises(ValueError, match=r"'all' returned float32\[3\], but"):
        opt.update(jnp.ones(3), opt.init(jnp.ones(2)))
    with pytest.raises(ValueError, match=r"returned complex64.*, but .*float32"):
        opt.update(jnp.ones(2, jnp.complex64), opt.init(jnp.ones(2)))


def test_the_state_of_other_measures():
    norm, x = eqopt.tree.norm, jnp.ones(2)
    message = r"`state\.measurements?` must .* keys \['a'\], but is \['b'\]"
    for make in (lambda a: eqopt.Snapshot(a, norm), lambda a: eqopt.Monitor({a: norm})):
        with pytest.raises(TypeError, match=message):
            make("a").update(x, make("b").init(x))
