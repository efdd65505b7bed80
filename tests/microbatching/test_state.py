"""An `eqx.nn.State` goes from microbatch to microbatch."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from eqopt.microbatching import (
    AccumulationType,
    Accumulator,
    micro_grad,
    micro_value_and_grad,
    micro_vmap,
    microbatch,
)

from ..interpreter import interpreted
from .subjects import assert_close


pytestmark = pytest.mark.slow


SUM, MEAN = AccumulationType.SUM, AccumulationType.MEAN
CONCAT = AccumulationType.CONCAT


class Model(eqx.Module):
    linear: eqx.nn.Linear
    norm: eqx.nn.BatchNorm

    def __init__(self, mode, *, key):
        self.linear = eqx.nn.Linear(3, 4, key=key)
        self.norm = eqx.nn.BatchNorm(4, "batch", mode=mode)

    def __call__(self, x, state):
        return self.norm(jnp.tanh(self.linear(x)), state)


def loss(model, x, state):
    axes = (0, None)
    batched = jax.vmap(model, axis_name="batch", in_axes=axes, out_axes=axes)
    y, state = batched(x, state)
    return jnp.mean((y - 1) ** 4), state


value_and_grad = eqx.filter_jit(eqx.filter_value_and_grad(loss, has_aux=True))


@pytest.mark.parametrize("mode", ["batch", "ema"])
@pytest.mark.parametrize("rows", [8, 10])
def test_batch_norm(mode, rows):
    """The same results as with a loop over the microbatches, for all functions."""
    model, initial = eqx.nn.make_with_state(Model)(mode, key=jr.key(0))
    x = jr.normal(jr.key(1), (rows, 3))
    parts = [x[i:8:2] for i in range(2)] + ([x[8:]] if rows > 8 else [])
    states, values, grads = [initial], [], []
    for part in parts:
        (value, state), grad = value_and_grad(model, part, states[-1])
        states.append(state)
        n = len(part)
        values.append(value * n)
        grads.append(jax.tree.map(lambda g, n=n: g * n, grad))
    value = sum(values) / rows
    grad = jax.tree.map(lambda *g: sum(g) / rows, *grads)

    @interpreted
    def micro(model, x, state, k):
        fun = eqx.filter_value_and_grad(loss, has_aux=True)
        arguments = {"num_real_microbatches": k}
        return (
            microbatch(fun, 1, 4, MEAN, **arguments)(model, x, state),
            microbatch(fun, 1, 4, ((MEAN, SUM), MEAN), **arguments)(
                model, x, state=state
            ),
            micro_value_and_grad(loss, True, microbatch_size=4, **arguments)(
                model, x, state
            ),
        )

    for out in micro(model, x, initial, None):
        assert_close(out, ((value, states[-1]), grad))
    for k in (0, 1, len(parts)):
        for out in micro(model, x, initial, jnp.array(k)):
            assert_close(out[0][1], states[k])
    ((_, state), _), *_ = micro(model, x, initial, 1)
    assert_close(state, states[1])


class Counter(eqx.Module):
    """Counts its calls, and adds up what it has been called with."""

    count: eqx.nn.StateIndex
    total: eqx.nn.StateIndex

    def __init__(self):
        self.count = eqx.nn.StateIndex(jnp.zeros((), jnp.int32))
        self.total = eqx.nn.StateIndex(jnp.zeros(()))

    def __call__(self, x, state, total=0.0):
        state = state.set(self.count, state.get(self.count) + 1)
        return x, state.set(self.total, state.get(self.total) + total)


counter, zero = eqx.nn.make_with_state(Counter)()


def read(state):
    return state.get(counter.count).item(), state.get(counter.total).item()


def test_the_accumulator_is_for_the_rest():
    fun = lambda x, state: {"y": x, "s": counter(x, state, jnp.sum(x))[1], "n": "name"}
    largest = Accumulator(
        init=lambda like: jnp.zeros(like.shape),
        update=lambda carry, value, index: jnp.maximum(carry, jnp.max(value)),
        finalize=lambda carry: carry,
        aggregate=lambda values: jnp.max(values, axis=0),
    )
    x = jnp.arange(5.0)
    # A tree of accumulators for the State too, as from `jax.tree.map` over the output.
    like_state = jax.tree.map(lambda _: SUM, zero)
    for s in (CONCAT, MEAN, largest, like_state):
        out = microbatch(fun, 0, 2, {"y": CONCAT, "s": s, "n": SUM})(x, zero)
        np.testing.assert_array_equal(out["y"], x)
        assert out["n"] == "name"
        assert read(out["s"]) == (3, 10.0)
    assert read(microbatch(fun, 0, 2, CONCAT)(x, state=zero)["s"]) == (3, 10.0)
    assert read(zero) == (0, 0.0)


def test_a_state_that_is_only_read_is_an_argument_like_others():
    fun = lambda x, state: x + state.get(counter.total)
    np.testing.assert_array_equal(microbatch(fun, 0, 2, CONCAT)(jnp.ones(3), zero), 1)
    vmapped = micro_vmap(fun, microbatch_size=2)
    np.testing.assert_array_equal(vmapped(jnp.ones(3), state=zero), 1)


@pytest.mark.parametrize("size", [None, 2, 3])
def test_rows_that_agree_on_the_state(size):
    calls = 1 if size is None else -(-5 // size)
    x = jnp.arange(5.0)
    fun = lambda x, state: counter(2 * x, state, 1.5)

    @interpreted
    def micro(x, state, k):
        arguments = {"microbatch_size": size, "num_real_microbatches": k}
        return (
            micro_vmap(fun, (0, None), **arguments)(x, state),
            micro_vmap(fun, vmap_fn=eqx.filter_vmap, **arguments)(x, state=state),
        )

    for k in (None, jnp.array(calls)):
        for y, state in micro(x, zero, k):
            np.testing.assert_array_equal(y, 2 * x)
            assert read(state) == (calls, 1.5 * calls)


def test_micro_grad():
    fun = lambda w, x, state: (w * x.sum(), {"state": counter(x, state, w)[1], "x": x})
    micro = eqx.filter_jit(micro_grad(fun, True, microbatch_size=2))
    grads, per_example = micro(jnp.float32(2), jnp.arange(5.0), zero)
    assert grads == 10
    assert read(per_example.aux["state"]) == (3, 6.0)
    np.testing.assert_array_equal(per_example.aux["x"][:, 0], jnp.arange(5.0))


def test_an_ensemble_of_states_is_mapped():
    """If no unmapped argument is a State, States in the output are mapped."""
    models, states = micro_vmap(
        lambda key: eqx.nn.make_with_state(Model)("batch", key=key), microbatch_size=2
    )(jr.split(jr.key(0), 3))
    assert states.get(models.norm.batch_counter).shape == (3,)
    _, states = micro_vmap(lambda m, s: (0, s), microbatch_size=2)(models, states)
    assert states.get(models.norm.batch_counter).shape == (3,)


def test_weak_types_and_second_steps():
    """A step compiles once more at most: when a weak type has become a strong one."""

    class Weak(eqx.Module):
        index: eqx.nn.StateIndex

        def __init__(self):
            self.index = eqx.nn.StateIndex(0.0)

    model, state = eqx.nn.make_with_state(Weak)()

    @eqx.filter_jit
    @eqx.debug.assert_max_traces(max_traces=1)
    def step(x, state):
        add = lambda x, s: s.set(model.index, s.get(model.index) + 1)
        return microbatch(add, 0, 2)(x, state)

    for _ in range(3):
        state = step(jnp.ones(5), state)
    assert state.get(model.index) == 9
