"""Optimizers, beyond the laws and the comparison with Optax."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt

from ..methods import METHODS


def test_repr_is_what_was_written():
    assert repr(eqopt.Adam(1e-3)) == "Adam(learning_rate=0.001)"
    schedule = eqopt.schedules.Constant(0.1)
    assert repr(eqopt.SGD(schedule)) == f"SGD(learning_rate={schedule!r})"


@pytest.mark.parametrize(
    "opt", [eqopt.SGD(0.1, 0.9), eqopt.Adam(0.1), eqopt.Lion(0.1)], ids=repr
)
def test_they_descend(opt):
    loss = lambda p: jnp.sum((p - jnp.arange(3.0)) ** 2)

    def body(carry, _):
        params, state = carry
        return opt.step(jax.grad(loss)(params), state, params), None

    start = jnp.full(3, 5.0)
    (params, _), _ = jax.lax.scan(body, (start, opt.init(start)), length=200)
    assert loss(params) < 0.1 < loss(start)


def test_adam_by_hand():
    """Two steps of the paper's algorithm."""
    g, p = np.array([3.0, -4.0]), np.array([1.0, 2.0])
    m = v = np.zeros(2)
    opt = eqopt.Adam(0.1, b1=0.8, b2=0.9, eps=1e-3)
    params = jnp.asarray(p, jnp.float32)
    state = opt.init(params)
    for t in (1, 2):
        m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g**2
        p = p - 0.1 * (m / (1 - 0.8**t)) / (np.sqrt(v / (1 - 0.9**t)) + 1e-3)
        params, state = opt.step(jnp.asarray(g, jnp.float32), state, params)
        np.testing.assert_allclose(params, p, rtol=1e-5)
        g = g / 2


def test_weight_decay_is_decoupled():
    """With zero gradients, parameters shrink by the rate times the decay."""
    params = jnp.ones(2)
    for opt in (
        eqopt.AdamW(0.1, weight_decay=0.5),
        eqopt.Lion(0.1, weight_decay=0.5),
    ):
        new, _ = opt.step(jnp.zeros(2), opt.init(params), params)
        np.testing.assert_allclose(new, 0.95, rtol=1e-6)


def test_weight_decay_is_not_lost_in_bfloat16():
    """It is added to the update in float32, and the sum is rounded once."""
    params = jnp.full(1, 1.0, jnp.bfloat16)
    opt = eqopt.AdamW(2.0**-8, b1=0.0, b2=0.0, eps=0.0, weight_decay=0.75)
    # 1 - 2^-8 (1 + 0.75): only both terms together reach two units in the last place.
    new, _ = opt.step(jnp.ones(1, jnp.bfloat16), opt.init(params), params)
    assert new == jnp.asarray(1 - 1.75 * 2.0**-8, jnp.bfloat16)


def test_second_moments_of_complex_parameters_are_real():
    params = jnp.array([3 + 4j], jnp.complex64)
    opt = eqopt.Adam(1.0, eps=0.0)
    state = opt.init(params)
    assert state[0].nu.dtype == jnp.float32
    updates, _ = opt.update(params, state, params)
    np.testing.assert_allclose(updates, -params / 5, rtol=1e-5)


def test_learning_rates_by_tree_at():
    """`tree_at` edits the recipe, and the chain follows."""
    opt = eqopt.Adam(0.1)
    faster = eqx.tree_at(lambda o: o.learning_rate, opt, 0.2)
    grads = jnp.ones(2)
    once, _ = opt.update(grads, opt.init(grads))
    twice, _ = faster.update(grads, faster.init(grads))
    np.testing.assert_allclose(twice, 2 * once)


@pytest.mark.parametrize(
    ("opt", "message"),
    [
        (eqopt.ScaleByAdam, "ScaleByAdam: `momentum_decay` is 0.004"),
        (lambda **x: eqopt.NAdam(0.1, nesterov=False, **x), "NAdam .*: `momentum_d"),
        (lambda **x: eqopt.NAdamW(0.1, nesterov=False, **x), "NAdamW .*: `momentum"),
    ],
)
def test_momentum_decay_needs_nesterov(opt, message):
    with pytest.raises(ValueError, match=message):
        opt(momentum_decay=0.004)


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=row.name)
        for method in METHODS.values()
        for row in method.laws
    ],
)
def test_errors_name_the_argument(row):
    """Not the argument of a part, which may have another name."""
    fields = {field.name for field in dataclasses.fields(row.subject)}
    for name in fields & {*row.data}:
        try:
            row(**{**row.data, name: np.ones(2)})
        except (TypeError, ValueError) as error:
            assert f"`{name}`" in str(error)
