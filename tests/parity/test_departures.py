"""Where eqopt departs from Optax on purpose.

Each claim of "At a glance", in "Coming from Optax", is checked on both sides.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest

import eqopt

from .departures.steps import finite, traces, updates_of


pytestmark = pytest.mark.usefixtures("standard_promotion")


@pytest.mark.slow
def test_a_bad_mini_batch_spoils_one_step():
    params = jnp.ones(2)
    grads = [jnp.array([jnp.nan, 1.0])] + [jnp.ones(2)] * 5
    ours = eqopt.MultiSteps(eqopt.ApplyIfFinite(eqopt.SGD(0.1), 10), 2)
    theirs = optax.MultiSteps(optax.apply_if_finite(optax.sgd(0.1), 10), 2)
    moved = [bool(u.any()) for u in updates_of(ours, grads, params)]
    assert moved == [False, False, False, True, False, True]
    assert not any(bool(u.any()) for u in updates_of(theirs, grads, params))


@pytest.mark.slow
def test_meta_gradients_at_zero_gradients():
    def end(opt, scale):
        params = jnp.ones(2)
        state = opt.init(params)
        for _ in range(2):
            updates, state = opt.update(scale * jnp.ones(2), state, params)
            params = params + updates
        return params.sum()

    assert finite(jax.grad(lambda s: end(eqopt.Adam(0.1), s))(0.0))
    assert not finite(jax.grad(lambda s: end(optax.adam(0.1), s))(0.0))


def test_scaling_by_an_array_keeps_bfloat16():
    grads = [jnp.ones(2, jnp.bfloat16)]
    by = jnp.asarray(2.0, jnp.float32)
    assert updates_of(eqopt.Scale(by), grads, grads[0])[0].dtype == jnp.bfloat16
    assert updates_of(optax.scale(by), grads, grads[0])[0].dtype == jnp.float32


def test_clipping_zeros_to_a_zero_norm():
    zeros = [jnp.zeros(2)]
    assert finite(updates_of(eqopt.ClipByGlobalNorm(0.0), zeros, zeros[0]))
    assert not finite(updates_of(optax.clip_by_global_norm(0.0), zeros, zeros[0]))


def test_float32_gradients_of_bfloat16_parameters_compile_once():
    assert traces(eqopt.Adam(0.1)) == 1
    assert traces(optax.adam(0.1)) == 2


def test_lookahead_takes_plain_parameters():
    params = jnp.ones(2)
    assert finite(
        updates_of(eqopt.Lookahead(eqopt.SGD(0.1), 2, 0.5), [params] * 3, params)
    )
    with pytest.raises(AttributeError):
        updates_of(optax.lookahead(optax.sgd(0.1), 2, 0.5), [params] * 3, params)


def test_whole_models():
    model = eqx.nn.MLP(2, 2, 2, 1, key=jax.random.key(0))
    eqopt.Adam(0.1).init(model)
    with pytest.raises(TypeError):
        optax.adam(0.1).init(model)


@pytest.mark.slow
def test_inner_updates_of_multi_steps():
    """Once in k mini-steps, and in every one."""
    calls = []

    def count(updates, params=None):
        jax.debug.callback(lambda: calls.append(1))
        return updates

    class Count(eqopt.AbstractTransformation):
        def init(self, params):
            return None

        def update(self, updates, state, params=None, **extra):
            return count(updates), state

    grads = [jnp.ones(2)] * 8
    for opt, expected in (
        (eqopt.MultiSteps(Count(), 4), 2),
        (optax.MultiSteps(optax.stateless(count), 4), 8),
    ):
        calls.clear()
        updates_of(opt, grads, grads[0])
        jax.effects_barrier()
        assert len(calls) == expected


def test_ragged_batches():
    batch, total = jnp.arange(5.0), eqopt.microbatching.AccumulationType.SUM
    assert eqopt.microbatching.microbatch(jnp.sum, 0, 2, total)(batch) == 10
    with pytest.raises(ValueError, match="divisible"):
        optax.microbatch(jnp.sum, 0, 2)(batch)
