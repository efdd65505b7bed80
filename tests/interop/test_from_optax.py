"""Optax's transformations in eqopt. (`tests/laws` tests the laws for them.)"""

import functools
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest

import eqopt
from eqopt.interop.optax import from_optax

from ..laws.subjects import (
    arrays,
    assert_close,
    assert_equal,
    awkward,
    grads_of,
    params_of,
)


X = jnp.linspace(-1, 1, 12).reshape(6, 2)
Y = jnp.prod(X, axis=1)


def mlp(depth=1):
    return eqx.nn.MLP(2, "scalar", 4, depth, key=jax.random.key(0))


def loss(model):
    return jnp.mean((jax.vmap(model)(X) - Y) ** 2)


@pytest.mark.slow
def test_like_optax_itself():
    """Bit for bit, for the parameters of a whole model, with strict promotion."""
    tx = optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(0.1))
    opt, model = from_optax(tx), awkward()
    params = eqx.filter(model, eqx.is_inexact_array)
    state, their_state = opt.init(model), tx.init(params)
    update, their_update = eqx.filter_jit(opt.update), eqx.filter_jit(tx.update)
    for i in range(3):
        grads = grads_of(model, i)
        updates, state = update(grads, state, model)
        model = eqopt.apply_updates(model, updates)
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            expected, their_state = their_update(grads, their_state, params)
            params = eqx.apply_updates(params, expected)
        assert_equal(updates, expected)
        assert_equal(state.optax_state, their_state)


@pytest.mark.slow
@pytest.mark.usefixtures("standard_promotion")
def test_a_line_search_sees_the_whole_model():
    tx, model = optax.lbfgs(memory_size=3), mlp()
    opt, (params, rest) = from_optax(tx), eqx.partition(model, eqx.is_inexact_array)
    of_params = lambda params: loss(eqx.combine(params, rest))

    @eqx.filter_jit
    def step(model, state):
        value, grads = eqx.filter_value_and_grad(loss)(model)
        extra = {"value": value, "grad": grads, "value_fn": loss}
        return opt.step(grads, state, model, **extra)

    @jax.jit
    def their_step(params, state):
        value, grads = jax.value_and_grad(of_params)(params)
        extra = {"value": value, "grad": grads, "value_fn": of_params}
        updates, state = tx.update(grads, state, params, **extra)
        return optax.apply_updates(params, updates), state

    state, their_state = opt.init(model), tx.init(params)
    before = loss(model)
    for _ in range(4):
        model, state = step(model, state)
        params, their_state = their_step(params, their_state)
    assert loss(model) < 0.5 * before
    assert_close(eqx.filter(model, eqx.is_inexact_array), params, 1e-4, 1e-5)


def test_injected_hyperparameters_are_data():
    tx = optax.inject_hyperparams(optax.sgd)(0.5)
    opt, params = from_optax(tx), params_of()
    state, grads = opt.init(params), grads_of(params, 0)
    update = eqx.filter_jit(eqx.debug.assert_max_traces(opt.update, max_traces=1))
    for learning_rate in (0.5, 0.125):
        state = eqopt.tree.set(state, learning_rate=learning_rate)
        updates, state = update(grads, state, params)
        expected = jax.tree.map(lambda g, eta=learning_rate: -eta * g, grads)
        assert_equal(updates, expected)
    assert eqopt.tree.get(state, "learning_rate") == 0.125


def test_everything_may_be_donated():
    """Also if Optax keeps arrays that it was given, without a copy."""
    tx = optax.contrib.dog(1.0)
    params = params_of()
    kept = {id(x) for x in arrays(tx.init(params))}
    assert kept & {id(x) for x in arrays(params)}
    opt = from_optax(tx)
    state = opt.init(params)
    step = eqx.filter_jit(
        lambda params, state, g: opt.step(g, state, params), donate="all"
    )
    grads = [grads_of(params, i) for i in range(2)]
    for g in grads:
        params, state = step(params, state, g)
    assert all(bool(jnp.all(jnp.isfinite(x))) for x in arrays(params))


OPT = from_optax(optax.adamw(0.1))


@functools.cache
def slopes():
    return eqx.filter_grad(loss)(mlp())


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: OPT.update(slopes(), OPT.init(mlp()), mlp(depth=2)),
            ValueError,
            "Only `params` has a leaf at `.layers[2].weight`",
        ),
    ],
)
@pytest.mark.costly
def test_bad_input(call, error, message):
    with pytest.raises(error, match=re.escape(message)):
        call()
