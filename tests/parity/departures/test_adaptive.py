"""Adaptive gradients: where eqopt departs from Optax on purpose, on both sides."""

import jax
import jax.numpy as jnp
import optax
import pytest

import eqopt


pytestmark = pytest.mark.usefixtures("standard_promotion")


def run(opt, grads_in_turn, params):
    """The updates of all steps, for either library."""
    state, update, seen = opt.init(params), jax.jit(opt.update), []
    for grads in grads_in_turn:
        updates, state = update(grads, state, params)
        seen.append(updates)
    return jnp.stack(seen)


def test_adadelta_without_a_learning_rate_descends():
    params = jnp.ones(2)
    assert (run(eqopt.Adadelta(), [params], params) < 0).all()
    assert (run(optax.adadelta(), [params], params) > 0).all()


def test_a_variance_is_not_negative():
    """Of a constant gradient it is zero up to rounding."""
    grads = [jnp.full(20, 3.3) * jnp.arange(1, 21)] * 200
    ours, theirs = eqopt.ScaleByStddev(), optax.scale_by_stddev()
    assert jnp.isfinite(run(ours, grads, grads[0])).all()
    assert jnp.isnan(run(theirs, grads, grads[0])).any()


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (eqopt.RMSprop(0.1), optax.rmsprop(0.1)),
        (eqopt.RMSprop(0.1, centered=True), optax.rmsprop(0.1, centered=True)),
    ],
    ids=["rmsprop", "centered"],
)
def test_zero_gradients_in_float16(ours, theirs):
    zeros = jnp.zeros(2, jnp.float16)
    assert not run(ours, [zeros], zeros).any()
    assert jnp.isnan(run(theirs, [zeros], zeros)).all()


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (eqopt.RMSprop(0.1, eps=0.0), optax.rmsprop(0.1, eps=0.0)),
        (eqopt.MADGRAD(0.1, eps=0.0), optax.contrib.madgrad(0.1, eps=0.0)),
    ],
    ids=["rmsprop", "madgrad"],
)
def test_zero_gradients_without_eps(ours, theirs):
    zeros = jnp.zeros(2)
    assert not run(ours, [zeros], zeros).any()
    assert jnp.isnan(run(theirs, [zeros], zeros)).all()


def test_a_nan_in_the_sum_is_seen():
    """In Optax, the parameter then gets only zero updates, and nothing shows why."""
    grads = [jnp.array([jnp.nan]), jnp.ones(1)]
    assert jnp.isnan(run(eqopt.Adagrad(0.1), grads, grads[0])[1])
    assert run(optax.adagrad(0.1), grads, grads[0])[1] == 0


@pytest.mark.slow
def test_sm3_takes_scalars_schedules_and_complex_parameters():
    schedule, scalar = optax.linear_schedule(0.1, 0.0, 5), jnp.ones(())
    assert run(eqopt.SM3(schedule), [scalar], scalar) < 0
    with pytest.raises(TypeError):
        run(optax.sm3(schedule), [scalar], scalar)
    with pytest.raises(IndexError):
        run(optax.sm3(0.1), [scalar], scalar)
    whirl = jnp.array([3 + 4j])
    # The first update is (1 - b1) g / |g|.
    expected = -0.1 * 0.1 * whirl / 5
    assert jnp.allclose(run(eqopt.SM3(0.1), [whirl], whirl), expected)
    with pytest.raises(ValueError, match="complex"):
        optax.sm3(0.1).init(whirl)


def test_madgrad_keeps_its_own_copy_of_the_parameters():
    """So that all may be donated."""
    params = jnp.ones(2)
    own = eqopt.tree.get(eqopt.MADGRAD(0.1).init(params), "x0")
    assert own.unsafe_buffer_pointer() != params.unsafe_buffer_pointer()
    theirs = optax.tree.get(optax.contrib.madgrad(0.1).init(params), "x0")
    assert theirs.unsafe_buffer_pointer() == params.unsafe_buffer_pointer()
