"""eqopt's transformations in Optax's hands."""

import functools
import importlib
import pickle
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import eqopt
from eqopt.interop.optax import from_optax, to_optax

from ..laws.row import is_matrix, matrix_or_other
from ..laws.subjects import assert_close, grads_of, params_of


# Optax does not run under strict promotion.
pytestmark = pytest.mark.usefixtures("standard_promotion")


def train(tx, params, steps=4):
    state = tx.init(params)
    update = jax.jit(tx.update)
    for i in range(steps):
        updates, state = update(grads_of(params, i), state, params)
        params = optax.apply_updates(params, updates)
    return params, state


ADAMW = eqopt.AdamW(0.1, weight_decay=0.1), optax.adamw(0.1, weight_decay=0.1)
PLACES = {
    "alone": lambda tx: tx,
    "chain": lambda tx: optax.chain(optax.clip(0.5), tx, optax.scale(0.5)),
    "named chain": lambda tx: optax.named_chain(("a", optax.clip(0.5)), ("b", tx)),
    "masked": lambda tx: optax.masked(tx, is_matrix),
    "partition": lambda tx: optax.partition(
        {"matrix": tx, "other": optax.sgd(0.1)}, matrix_or_other
    ),
    "apply_if_finite": lambda tx: optax.apply_if_finite(tx, 2),
    "MultiSteps": lambda tx: optax.MultiSteps(tx, 2).gradient_transformation(),
    "flatten": optax.flatten,
}


QUICK = {"chain", "masked"}


@pytest.mark.parametrize(
    "place",
    [p if p in QUICK else pytest.param(p, marks=pytest.mark.slow) for p in PLACES],
)
@pytest.mark.costly
def test_like_that_of_optax(place):
    ours, theirs = ADAMW
    params = params_of()
    trained, _ = train(PLACES[place](to_optax(ours)), params)
    expected, _ = train(PLACES[place](theirs), params)
    assert_close(trained, expected)


def test_extra_arguments_of_others():
    """Unknown ones do no harm, and reach a part of Optax inside."""

    def update(updates, state, params=None, **extra):
        return jax.tree.map(lambda g: extra["obj_fn"] * g, updates), state

    reader = optax.GradientTransformationExtraArgs(lambda params: (), update)
    params = params_of()
    inside = eqopt.MultiSteps(eqopt.Chain(from_optax(reader), eqopt.SGD(0.5)), 1)
    beside = optax.chain(reader, to_optax(eqopt.SGD(0.5)))
    for tx in (to_optax(inside), beside):
        updates, _ = tx.update(params, tx.init(params), params, obj_fn=2.0)
        assert_close(updates, jax.tree.map(jnp.negative, params))


def test_equality():
    """Equal optimizers share a trace; without a hash, nothing is shared."""
    count = 0

    @functools.partial(jax.jit, static_argnums=0)
    def init(tx, params):
        nonlocal count
        count += 1
        return tx.init(params)

    make = lambda rate: eqopt.Chain(
        eqopt.Clip(1.0), eqopt.MultiSteps(eqopt.Muon(rate), 2)
    )
    for rates, expected in (([0.1, 0.1], 1), ([0.2, 0.3], 2), ([jnp.ones(())] * 2, 2)):
        count = 0
        for rate in rates:
            init(to_optax(make(rate)), params_of())
        assert count == expected
    assert pickle.loads(pickle.dumps(to_optax(eqopt.Adam(0.1)))) is not None


@pytest.mark.parametrize("with_params", [True, False])
def test_integers_stay(with_params):
    params = {"w": jnp.ones(2), "n": jnp.arange(3), "masked": optax.MaskedNode()}
    loss = lambda params: jnp.sum(params["w"] ** 2)
    grads = jax.grad(loss, allow_int=True)(params)
    assert grads["n"].dtype == jax.dtypes.float0
    tx = to_optax(eqopt.Adam(0.1))
    state = tx.init(params)
    updates, state = tx.update(grads, state, params if with_params else None)
    new = optax.apply_updates(params, updates)
    np.testing.assert_array_equal(new["n"], params["n"])
    assert new["n"].dtype == params["n"].dtype
    np.testing.assert_allclose(new["w"], 0.9, rtol=1e-6)
    integers = {**grads, "n": jnp.array([7, 8, 9])}
    updates, _ = tx.update(integers, state, params if with_params else None)
    np.testing.assert_array_equal(updates["n"], 0)


def test_python_floats_are_parameters():
    params = {"slope": 1.0, "offset": np.float32(2.0)}
    grads = {"slope": 3.0, "offset": jnp.ones(())}
    trained = []
    for tx in (to_optax(eqopt.Adam(0.1)), optax.adam(0.1)):
        updates, _ = tx.update(grads, tx.init(params), params)
        trained.append(optax.apply_updates(params, updates))
    assert_close(*trained)
    assert trained[0]["slope"] < 1


def test_a_missing_package(monkeypatch):
    name = "eqopt.interop.optimistix._minimiser"
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "optimistix", None)
    with pytest.raises(ImportError, match="optimistix"):
        importlib.import_module(name)
