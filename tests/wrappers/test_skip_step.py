"""Skipping steps and mini-steps: which are skipped, and what stays as it was."""

import dataclasses

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqopt


PARAMS = {"a": jnp.ones(3), "b": [jnp.ones((2, 2)), None]}


def grads(bad=None, size=1.0):
    tree = jax.tree.map(lambda p: size * jnp.ones_like(p), PARAMS)
    if bad is not None:
        tree["b"][0] = tree["b"][0].at[1, 0].set(bad)
    return tree


def bits(tree):
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(tree)]


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf, -jnp.inf])
def test_skip_not_finite(bad):
    skip, said = eqopt.SkipNotFinite()(grads(bad), 0, None)
    assert skip and said["should_skip"] and said["num_not_finite"] == 1
    skip, said = eqopt.SkipNotFinite()(grads(), 0, PARAMS)
    assert not skip and not said["should_skip"] and said["num_not_finite"] == 0


def test_each_element_that_is_not_finite_is_counted():
    many = {"x": jnp.array([jnp.nan, 1, jnp.inf]), "y": jnp.array([-jnp.inf, 0])}
    assert eqopt.SkipNotFinite()(many, 0, None)[1]["num_not_finite"] == 3
    assert eqopt.SkipNotFinite()({}, 0, None)[1]["num_not_finite"] == 0


@pytest.mark.parametrize(
    ("bound", "skips"), [(7.5, False), (7.0, True), (0.0, True), (jnp.inf, False)]
)
def test_skip_large_updates(bound, skips):
    for value in (bound, jnp.asarray(bound)):
        skip, said = eqopt.SkipLargeUpdates(value)(grads(), 0, None)
        assert skip == said["should_skip"] == skips
        assert said["norm_squared"] == 7


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
def test_updates_that_are_not_finite_are_large(bad):
    assert eqopt.SkipLargeUpdates(jnp.inf)(grads(bad), 0, None)[0]


def test_large_in_half_precision():
    """The square of 300 overflows in float16."""
    tree = {"w": jnp.full(4, 300.0, jnp.float16)}
    skip, said = eqopt.SkipLargeUpdates(1e6)(tree, 0, None)
    assert not skip and said["norm_squared"] == 4 * 300**2


@pytest.mark.parametrize("call", ["update", "step"])
@pytest.mark.slow
def test_mini_steps(call):
    """After a skipped mini-step, everything is as if it had never occurred."""
    opt = eqopt.MultiSteps(
        eqopt.Adam(0.1), 2, should_skip_update_fn=eqopt.SkipNotFinite()
    )
    method = jax.jit(getattr(opt, call))

    def final(sequence):
        params, state = PARAMS, opt.init(PARAMS)
        for g in sequence:
            result, state = method(g, state, params)
            params = result if call == "step" else eqopt.apply_updates(params, result)
        return params, dataclasses.replace(state, skip_state=None, skipped_last=None)

    good = [grads(), grads(size=2.0), grads(size=0.5), grads()]
    with_bad = [grads(jnp.nan), good[0], grads(jnp.inf), *good[1:], grads(jnp.nan)]
    assert bits(final(with_bad)) == bits(final(good))


ALWAYS = lambda value, norm: norm >= 0
LARGE = lambda value, norm: ~(norm < 5)


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf, 100.0])
@pytest.mark.parametrize("call", ["update", "step"])
@pytest.mark.parametrize("inner", [eqopt.AdamW(0.1), eqopt.ParamEMA(eqopt.SGD(0.1))])
@pytest.mark.costly
def test_a_skipped_step_changes_only_counters(bad, call, inner):
    opt = eqopt.SkipStep(inner, LARGE)
    _, state = opt.step(grads(), opt.init(PARAMS), PARAMS)
    assert (state.skipped_last, state.total_skipped) == (False, 0)
    result, new = jax.jit(getattr(opt, call))(grads(bad), state, PARAMS)
    if call == "step":
        assert bits(result) == bits(PARAMS)
    else:
        assert not any(x.any() for x in jax.tree.leaves(result))
    assert bits(new.inner_state) == bits(state.inner_state)
    assert (new.skipped_last, new.total_skipped) == (True, 1)
    _, new = jax.jit(getattr(opt, call))(grads(), new, PARAMS)
    assert (new.skipped_last, new.total_skipped) == (False, 1)


def test_a_function_sees_the_loss_and_the_norm():
    seen = []
    rule = lambda value, norm: (seen.append((value, norm)), jnp.zeros((), bool))[1]
    opt = eqopt.SkipStep(eqopt.SGD(0.1), rule)
    state = opt.init(PARAMS)
    opt.step(grads(), state, PARAMS)
    opt.step(grads(), state, PARAMS, value=jnp.asarray(2.5, jnp.bfloat16))
    (nothing, norm), (value, _) = seen
    assert nothing is None and value == 2.5 and value.dtype == jnp.float32
    np.testing.assert_allclose(norm, np.sqrt(7), 1e-6)


def test_a_rule_of_the_user():
    class EveryThird(eqopt.AbstractSkipRule):
        def init(self):
            return jnp.zeros((), jnp.int32)

        def __call__(self, value, norm, state):
            return state % 3 == 2, state + 1

    opt = eqopt.SkipStep(eqopt.SGD(0.1), EveryThird())
    state, skipped = opt.init(PARAMS), []
    for _ in range(6):
        _, state = opt.step(grads(), state, PARAMS)
        skipped.append(bool(state.skipped_last))
    assert skipped == [False, False, True] * 2
    assert (state.rule_state, state.total_skipped) == (6, 2)


class Oracle:
    """The rule in float64 NumPy, with lists."""

    def __init__(self, window, sigma, min_history):
        self.settings = window, sigma, min_history
        self.seen = {}

    def __call__(self, **values):
        judged = [self.judge(name, x) for name, x in values.items()]
        return any(judged)

    def judge(self, name, x):
        window, sigma, min_history = self.settings
        history = self.seen.setdefault(name, [])
        last = history[-window:]
        if not np.isfinite(x):
            return True
        history.append(x)
        if len(last) < min_history:
            return False
        return x > np.mean(last) + sigma * np.std(last, ddof=1)


@pytest.mark.parametrize("settings", [(4, 1.0, 2), (8, 2.0, 4), (16, 0.5, 16)])
@pytest.mark.parametrize("has_value", [True, False])
@pytest.mark.costly
def test_sigma_rule_by_hand(settings, has_value):
    rule, oracle = eqopt.SigmaRule(*settings), Oracle(*settings)
    draw = np.random.default_rng(0)
    state, call, skipped = rule.init(), jax.jit(rule), 0
    for i in range(80):
        value, norm = draw.lognormal(size=2).astype(np.float32)
        value = {20: np.nan, 21: np.inf}.get(i, value)
        norm = {22: np.inf, 23: np.nan, 40: 1e30}.get(i, norm)
        expected = oracle(**({"value": value} if has_value else {}), norm=norm)
        given = jnp.float32(value) if has_value else None
        skip, state = call(given, jnp.float32(norm), state)
        assert bool(skip) == expected, i
        skipped += expected
    assert 5 < skipped < 60
    assert state.norm_count == 78 and state.value_count == 78 * has_value


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e15])
def test_equal_values_are_not_large(scale):
    """Also if float32 rounds their mean to a larger number."""
    rule = eqopt.SigmaRule(128, 0.0)
    state, call = rule.init(), jax.jit(rule)
    for _ in range(140):
        x = jnp.float32(0.1 * scale)
        skip, state = call(x, x, state)
        assert not skip


def test_a_rise_that_lasts_is_accepted():
    rule = eqopt.SigmaRule()
    state, call, draw = rule.init(), jax.jit(rule), np.random.default_rng(0)
    skipped = []
    for i in range(200):
        norm = (1 if i < 150 else 50) + 0.1 * draw.random()
        skip, state = call(None, jnp.float32(norm), state)
        skipped.append(bool(skip))
    assert np.flatnonzero(skipped).tolist() == [150, 151, 152, 153]


@pytest.mark.parametrize(("n", "sigma"), [(5, 1.9), (8, 2.4), (16, 1.0)])
def test_how_long_a_rise_counts_as_large(n, sigma):
    """The formula of the docstring, where it differs from $(n - k) / k$."""
    rule = eqopt.SigmaRule(n, sigma, min_history=n)
    state, call, skipped = rule.init(), jax.jit(rule), []
    for i in range(2 * n):
        skip, state = call(None, jnp.float32(1 if i < n else 2), state)
        skipped.append(bool(skip))
    large = [(n - k) * (n - 1) / (n * max(k, 1e-9)) > sigma**2 for k in range(n)]
    assert skipped == [False] * n + large


def test_skips_only_after_half_of_the_window():
    rule = eqopt.SigmaRule(8)
    state, skipped = rule.init(), []
    for i in range(8):
        skip, state = rule(None, jnp.float32(10.0**i), state)
        skipped.append(bool(skip))
    assert skipped[:4] == [False] * 4


@pytest.mark.slow
def test_training_through_bad_batches():
    """With NaN and infinite gradients and losses, everything stays finite."""
    opt = eqopt.SkipStep(eqopt.AdamW(0.1), eqopt.SigmaRule(16, 3.0))
    params, target = jnp.zeros(5), jnp.arange(5.0)
    state = opt.init(params)

    @jax.jit
    def step(params, state, i):
        loss = lambda p: jnp.sum((p - target) ** 2) + 0.1 * jnp.sin(1.0 * i)
        value, g = jax.value_and_grad(loss)(params)
        g = jnp.where(i % 7 == 3, jnp.nan, jnp.where(i % 11 == 5, 1e20 * g, g))
        value = jnp.where(i % 13 == 0, jnp.inf, value)
        return opt.step(g, state, params, value=value)

    for i in range(120):
        params, state = step(params, state, i)
        finite = [jnp.isfinite(x).all() for x in jax.tree.leaves((params, state))]
        assert all(finite), i
    np.testing.assert_allclose(params, target, atol=0.5)
    assert state.total_skipped >= 120 // 7 + 120 // 13


def test_without_skipped_steps_it_is_the_inner_optimizer():
    inner = eqopt.Adam(0.1)
    opt = eqopt.SkipStep(inner, eqopt.SigmaRule())
    g = jax.tree.map(lambda p: jr.normal(jr.key(0), p.shape), PARAMS)
    ours, _ = opt.step(g, opt.init(PARAMS), PARAMS)
    expected, _ = inner.step(g, inner.init(PARAMS), PARAMS)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-6), ours, expected)


ERRORS = {
    "too much history": (
        lambda: eqopt.SigmaRule(8, min_history=9),
        r"SigmaRule: `min_history` must be in \[2, 8\], but is 9",
    ),
    "several losses": (
        lambda: _step(ALWAYS, value=jnp.ones(3)),
        r"SkipStep: `value` must be one real number, .* \(3,\)",
    ),
    "another state": (
        lambda: eqopt.SkipStep(eqopt.SGD(0.1), ALWAYS).step(grads(), None, PARAMS),
        "SkipStep: `state` must be of type SkipStepState",
    ),
}


def _step(rule, **extra):
    opt = eqopt.SkipStep(eqopt.SGD(0.1), rule)
    opt.step(grads(), opt.init(PARAMS), PARAMS, **extra)


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    call, message = ERRORS[name]
    with pytest.raises((TypeError, ValueError), match=message):
        call()
