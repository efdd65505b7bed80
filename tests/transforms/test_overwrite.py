"""Parameters whose gradients are their next values, as in float8 layers."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt


LARGEST = 448.0  # of float8 with three bits of mantissa
RATE = 0.05


@jax.custom_vjp
def rounded(x, scale, history):
    """`x` on a grid of spacing `scale`."""
    return jnp.round(x / scale) * scale


def forward(x, scale, history):
    # The next scale is from the history, and the history gets the newest value.
    new = jnp.where(history.max() > 0, history.max() / LARGEST, scale)
    later = jnp.roll(history, 1).at[0].set(jnp.max(jnp.abs(x)))
    return rounded(x, scale, history), (new, later)


rounded.defvjp(forward, lambda kept, g: (g, *kept))


class Layer(eqx.Module):
    weight: jax.Array
    scale: jax.Array
    history: jax.Array

    def __call__(self, x):
        return rounded(self.weight, self.scale, self.history) @ x


def layer():
    weight = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
    return Layer(jnp.asarray(weight), jnp.array(0.5), jnp.zeros(4))


META = eqopt.groups.path("scale|history")
RULES = eqopt.groups.label({"meta": META, "rest": eqopt.groups.everything})
X = np.array([0.5, -1.0, 2.0], np.float32)
TARGET = np.array([1.0, -3.0], np.float32)


@pytest.mark.slow
def test_scales_follow_the_histories():
    rest = eqopt.Chain(eqopt.ClipByGlobalNorm(1e3), eqopt.SGD(RATE))
    opt = eqopt.Partition({"meta": eqopt.Overwrite(), "rest": rest}, RULES)

    @eqx.filter_jit
    def step(model, state):
        loss = lambda model: jnp.sum((model(X) - TARGET) ** 2)
        return opt.step(eqx.filter_grad(loss)(model), state, model)

    model = layer()
    state = opt.init(model)
    w, scale = np.array(model.weight), np.float32(0.5)
    history = np.zeros(4, np.float32)
    for _ in range(30):
        model, state = step(model, state)
        g = 2 * np.outer((np.round(w / scale) * scale) @ X - TARGET, X)
        seen, top = np.abs(w).max(), history.max()
        w, scale = w - RATE * g, (top / np.float32(LARGEST) if top > 0 else scale)
        history = np.concatenate([[seen], history[:-1]])
        np.testing.assert_allclose(model.weight, w, 1e-4, 1e-5)
        np.testing.assert_allclose(model.scale, scale, 1e-4)
        np.testing.assert_allclose(model.history, history, 1e-4)


def test_a_step_does_not_round():
    """Adding the difference would lose the smaller of two numbers."""
    params = {"x": jnp.array([1e8, 1.0, jnp.inf]), "y": None, "n": 3}
    grads = {"x": jnp.array([1e-3, 1e-30, 2.0]), "y": None, "n": None}
    opt = eqopt.Overwrite()
    new, state = opt.step(grads, opt.init(params), params)
    np.testing.assert_array_equal(new["x"], grads["x"])
    assert (new["y"], new["n"], state) == (None, 3, None)
    ordinary = {**params, "x": jnp.array([0.5, 1.0, 3.0])}
    updates, _ = opt.update(grads, state, ordinary)
    sums = eqopt.apply_updates(ordinary, updates)
    np.testing.assert_allclose(sums["x"], grads["x"], 1e-6, 1e-7)


def test_the_parameter_is_not_the_gradient():
    """The gradient may be donated later."""
    grads = {"x": jnp.ones(2)}
    new, _ = eqopt.Overwrite().step(grads, None, {"x": jnp.zeros(2)})
    grads["x"].delete()
    assert new["x"].tolist() == [1, 1]


def test_errors():
    opt, ones = eqopt.Overwrite(), jnp.ones(2)
    with pytest.raises(
        ValueError, match="Overwrite: the parameters are needed, but `params`"
    ):
        opt.update({"x": ones}, None)
    with pytest.raises(ValueError, match=r"Overwrite: shapes do not fit at `\['x'\]`"):
        opt.step({"x": ones}, None, {"x": jnp.ones(3)})
    for call in (opt.update, opt.step):
        with pytest.raises(
            TypeError, match=r"Overwrite: dtypes do not fit at `\['x'\]`"
        ):
            call({"x": ones.astype(complex)}, None, {"x": ones})
    with pytest.raises(ValueError, match="`params` has another tree structure"):
        opt.step({"x": ones}, None, {"y": ones})
