"""Processing around an aggregator, and tracking of mean and variance over time."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqopt
from eqopt import aggregating


pytestmark = pytest.mark.slow


def bits(tree):
    arrays = jax.tree.leaves(eqx.filter(tree, eqx.is_array))
    return [np.asarray(x).tobytes() for x in arrays]


def close(left, right, rtol, atol):
    arrays = [jax.tree.leaves(eqx.filter(x, eqx.is_array)) for x in (left, right)]
    for a, b in zip(*arrays, strict=True):
        np.testing.assert_allclose(a, b, rtol, atol)


def loss(model, example):
    x, y = example
    return jnp.mean((model(x) - y) ** 2)


grads_of = eqx.filter_jit(eqx.filter_vmap(eqx.filter_grad(loss), in_axes=(None, 0)))


def batch_of(seed, n=6):
    keys = jr.split(jr.key(seed))
    return jr.normal(keys[0], (n, 3)), jr.normal(keys[1], (n, 2))


MODEL = eqx.nn.MLP(3, 2, 4, 1, key=jr.key(0))


@pytest.mark.parametrize("call", ["update", "step"])
def test_whole_model(call):
    """Three calls of two examples are one step on the mean of all six."""
    inner = eqopt.AdamW(0.1, weight_decay=0.1)
    opt = aggregating.add_mean_variance_to_opt(inner, 0.9, 0, 3)
    state, model = opt.init(MODEL), MODEL
    expected, inner_state = MODEL, inner.init(MODEL)
    traced = eqx.debug.assert_max_traces(getattr(opt, call), max_traces=1)
    method = eqx.filter_jit(lambda g, s, m: traced(g, s, m))
    for seed in range(2):
        x, y = batch_of(seed)
        whole, before = grads_of(expected, (x, y)), None
        for part in (slice(0, 2), slice(2, 4), slice(4, 6)):
            assert part.start == 0 or bits(model) == bits(before)
            before = model
            grads = grads_of(expected, (x[part], y[part]))
            result, state = method(grads, state, model)
            model = result if call == "step" else eqopt.apply_updates(model, result)
        mean = jax.tree.map(lambda g: jnp.mean(g, 0), whole)
        expected, inner_state = inner.step(mean, inner_state, expected)
        close(model, expected, 1e-3, 1e-4)
        model = expected
        if seed == 0:
            variance = jax.tree.map(lambda g: jnp.var(g, 0, ddof=1), whole)
            tracked = aggregating.get_unbiased_mean_and_variance_ema(state)
            close(tracked, (mean, variance), 1e-4, 1e-5)


def test_averages_over_time():
    """The closed form, with the decay as a number, an array and a schedule."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(12, 5, 3)).astype(np.float32)
    weights = 0.2 * 0.8 ** np.arange(11, -1, -1.0)
    weights = weights[:, None] / weights.sum()
    mean, variance = (
        (weights * values).sum(0) for values in (x.mean(1), x.var(1, ddof=1))
    )
    for decay in (0.8, jnp.asarray(0.8), lambda count: jnp.asarray(0.8)):
        opt = aggregating.add_mean_variance_to_opt(eqopt.SGD(0.1), decay)
        opt = eqopt.Scheduled(opt) if callable(decay) else opt
        state, update = opt.init(jnp.zeros(3)), eqx.filter_jit(opt.update)
        for g in x:
            updates, state = update(jnp.asarray(g), state)
            np.testing.assert_allclose(updates, -0.1 * g.mean(0), rtol=1e-5, atol=1e-7)
        tracked = aggregating.get_unbiased_mean_and_variance_ema(state)
        np.testing.assert_allclose(tracked[0], mean, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(tracked[1], variance, rtol=1e-5)


def test_one_example_in_all():
    """Known only at run time that there is but one: no difference is seen."""
    opt = aggregating.add_mean_variance_to_opt(eqopt.SGD(1.0), 0.9, 0, jnp.asarray(1))
    params = jnp.ones(2)
    _, state = opt.update(jnp.ones((1, 2)), opt.init(params))
    assert (aggregating.get_unbiased_mean_and_variance_ema(state)[1] == 0).all()


@pytest.mark.parametrize("call", ["update", "step"])
def test_postprocessor_runs_once_in_k(call):
    """Counted while the program runs, not while it is traced."""
    calls = []

    class Counted(eqopt.AbstractTransformation):
        def init(self, params):
            return None

        def update(self, updates, state, params=None, **extra):
            jax.debug.callback(lambda: calls.append(1))
            return updates, state

    mean = aggregating.AverageIncrementallyUpdates(0, 4)
    opt = aggregating.Process(eqopt.Identity(), mean, Counted())
    params, grads = jnp.ones(3), jnp.ones((2, 3))
    state, method = opt.init(params), jax.jit(getattr(opt, call))
    for _ in range(12):
        _, state = method(grads, state, params)
    jax.effects_barrier()
    assert len(calls) == 3


def test_preprocessing_and_other_aggregators():
    clip = eqopt.ClipByGlobalNorm(1.0)
    clip_each = eqopt.Stateless(
        lambda grads, params: jax.vmap(lambda g: clip.update(g, None)[0])(grads)
    )
    grads, params = 10 * jr.normal(jr.key(0), (4, 3)), jnp.ones(3)
    opt = aggregating.Process(
        clip_each, aggregating.AveragePerElementUpdates(), eqopt.SGD(0.1)
    )
    private = aggregating.Process(
        eqopt.Identity(),
        eqopt.DifferentiallyPrivateAggregate(1.0, 0.0, 0),
        eqopt.SGD(0.1),
    )
    results = [o.step(grads, o.init(params), params)[0] for o in (opt, private)]
    np.testing.assert_allclose(*results, rtol=1e-5)
    chained = aggregating.Process(
        eqopt.Identity(),
        eqopt.Chain(
            aggregating.AveragePerElementUpdates(), aggregating.AccumulateAvgUpdates(2)
        ),
        eqopt.Adam(0.1),
    )
    state = chained.init(params)
    stepped, state = chained.step(grads, state, params)
    assert bits(stepped) == bits(params)
    stepped, state = chained.step(grads, state, params)
    assert bits(stepped) != bits(params)


def test_a_call_in_between_takes_no_memory():
    """Beyond what its own examples amount to, with parameters and state donated.

    Those that XLA has not yet merged into the state: of a variance, two trees and a copy.
    """
    leaves, shape = 10, (300, 1000)
    params = [jax.ShapeDtypeStruct(shape, jnp.float32)] * leaves

    def temporary(opt, grads):
        state = jax.eval_shape(opt.init, params)
        step = jax.jit(
            lambda params, state, grads: opt.step(grads, state, params),
            donate_argnums=(0, 1),
        )
        memory = step.lower(params, state, grads).compile().memory_analysis()
        size = leaves * 4 * 300 * 1000
        assert memory.output_size_in_bytes - memory.alias_size_in_bytes < 0.01 * size
        return memory.temp_size_in_bytes / size

    batch = [jax.ShapeDtypeStruct((3, *shape), jnp.float32)] * leaves
    adam = eqopt.Adam(0.1)
    within = aggregating.AverageIncrementallyUpdates(0, 4)
    for opt, grads, copies in (
        (aggregating.AccumulateAvgUpdates(4), params, 0.01),
        (within, batch, 0.21),
        (aggregating.add_mean_variance_to_opt(adam, 0.9, 0, 4), batch, 3.01),
        (aggregating.add_mean_variance_to_opt(adam), batch, 1.31),
    ):
        if isinstance(opt, aggregating.AbstractAggregator):
            opt = aggregating.Process(eqopt.Identity(), opt, adam)
        assert temporary(opt, grads) < copies


def test_parameters_may_be_named_ready():
    params = {"ready": {"w": jnp.ones(3)}, "deeper": {"ready": jnp.ones(())}}
    average = aggregating.AccumulateAvgUpdates(2)
    opt = aggregating.Process(eqopt.Identity(), average, eqopt.SGD(1.0))
    state, step, now = opt.init(params), jax.jit(opt.step), params
    for count in (1.0, 1.0, 0.0):
        assert all((x == count).all() for x in jax.tree.leaves(now))
        now, state = step(params, state, now)


def test_update_in_a_wrapper_that_skips():
    """The zeros of a skipped step are like the parameters, without the examples."""
    mean = aggregating.AveragePerElementUpdates()
    opt = eqopt.ApplyIfFinite(eqopt.Chain(mean, eqopt.SGD(0.1)), 9)
    params = {"w": jnp.ones(3, jnp.bfloat16), "frozen": jnp.ones(2)}
    grads = {"w": jnp.ones((2, 3), jnp.bfloat16), "frozen": None}
    update, state = jax.jit(opt.update), opt.init(params)
    results = []
    for factor in (1, jnp.nan):
        updates, state = update(eqopt.tree.scale(factor, grads), state, params)
        assert updates["w"].dtype == jnp.bfloat16
        assert updates["frozen"] is None
        results.append(updates["w"].astype(float).tolist())
    np.testing.assert_allclose(results, [[-0.1] * 3, [0.0] * 3], 1e-2)
