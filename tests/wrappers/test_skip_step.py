"""Skipping steps and mini-steps: which are skipped, and what stays as it was."""

import jax
import jax.numpy as jnp
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


def test_skip_large_updates():
    for bound, skips in ((7.5, False), (jnp.asarray(7.0), True), (jnp.inf, False)):
        skip, said = eqopt.SkipLargeUpdates(bound)(grads(), 0, None)
        assert skip == said["should_skip"] == skips
        assert said["norm_squared"] == 7
    assert eqopt.SkipLargeUpdates(jnp.inf)(grads(jnp.nan), 0, None)[0]


def test_large_in_half_precision():
    """The square of 300 overflows in float16."""
    tree = {"w": jnp.full(4, 300.0, jnp.float16)}
    skip, said = eqopt.SkipLargeUpdates(1e6)(tree, 0, None)
    assert not skip and said["norm_squared"] == 4 * 300**2


LARGE = lambda value, norm: ~(norm < 5)


ADAMW = eqopt.AdamW(0.1)


@pytest.mark.parametrize(
    ("opt", "fields", "before", "after"),
    [
        (eqopt.SkipStep(ADAMW, LARGE), "skipped_last total_skipped", (0, 0), (1, 1)),
        (
            eqopt.ApplyIfFinite(ADAMW, 3),
            "last_finite notfinite_count total_notfinite",
            (1, 0, 0),
            (0, 1, 1),
        ),
        (
            eqopt.DynamicLossScale(ADAMW),
            "last_finite total_notfinite good_steps loss_scale",
            (1, 0, 1, 2.0**15),
            (0, 1, 0, 2.0**14),
        ),
    ],
    ids=lambda x: type(x).__name__,
)
@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf, -jnp.inf])
@pytest.mark.parametrize("call", ["update", "step"])
@pytest.mark.costly
def test_a_skipped_step_changes_only_counters(opt, fields, before, after, bad, call):
    counters = lambda state: tuple(getattr(state, x).item() for x in fields.split())
    _, state = opt.step(grads(), opt.init(PARAMS), PARAMS)
    assert counters(state) == before
    result, new = jax.jit(getattr(opt, call))(grads(bad), state, PARAMS)
    if call == "step":
        assert bits(result) == bits(PARAMS)
    else:
        assert not any(x.any() for x in jax.tree.leaves(result))
    assert bits(new.inner_state) == bits(state.inner_state)
    assert counters(new) == after


def test_apply_if_finite_gives_up_and_recovers():
    opt = eqopt.ApplyIfFinite(eqopt.SGD(0.1), 2)
    state, seen = opt.init(PARAMS), []
    for bad in [None, jnp.nan, None, jnp.nan, jnp.nan, jnp.nan, jnp.nan, None]:
        updates, state = opt.update(grads(bad), state, PARAMS)
        applied = bool(jnp.any(updates["a"] != 0))
        seen.append((applied, int(state.notfinite_count), int(state.total_notfinite)))
    assert seen == [
        (True, 0, 0),
        (False, 1, 1),
        (True, 0, 1),
        (False, 1, 2),
        (False, 2, 3),
        (True, 3, 4),  # given up
        (True, 3, 5),
        (True, 0, 5),
    ]


def test_large_gradients_are_not_bad_gradients():
    """The sum of many large values overflows, but the values are finite."""
    opt = eqopt.ApplyIfFinite(eqopt.Scale(1.0), 2)
    large = {"w": jnp.full(1000, 3e38)}
    _, state = opt.update(large, opt.init(large), large)
    assert state.last_finite
    half = {"w": jnp.full(1000, 6e4, jnp.float16)}
    _, state = opt.update(half, opt.init(half), half)
    assert state.last_finite


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


def oracle(window, sigma, min_history):
    """The rule in float64 NumPy, with lists."""
    seen = {}

    def judge(name, x):
        history = seen.setdefault(name, [])
        last = history[-window:]
        if not np.isfinite(x):
            return True
        history.append(x)
        is_known = len(last) >= min_history
        return is_known and x > np.mean(last) + sigma * np.std(last, ddof=1)

    return lambda **values: max(judge(name, x) for name, x in values.items())


@pytest.mark.parametrize("settings", [(4, 1.0, 2), (8, 2.0, 4), (16, 0.5, 16)])
@pytest.mark.parametrize("has_value", [True, False])
@pytest.mark.costly
def test_sigma_rule_by_hand(settings, has_value):
    rule, by_hand = eqopt.SigmaRule(*settings), oracle(*settings)
    draw = np.random.default_rng(0)
    state, call, skipped = rule.init(), jax.jit(rule), 0
    for i in range(80):
        value, norm = draw.lognormal(size=2).astype(np.float32)
        value = {20: np.nan, 21: np.inf}.get(i, value)
        norm = {22: np.inf, 23: np.nan, 40: 1e30}.get(i, norm)
        expected = by_hand(**({"value": value} if has_value else {}), norm=norm)
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


def test_skips_only_after_half_of_the_window():
    rule = eqopt.SigmaRule(8)
    state, skipped = rule.init(), []
    for i in range(8):
        skip, state = rule(None, jnp.float32(10.0**i), state)
        skipped.append(bool(skip))
    assert skipped[:4] == [False] * 4


def test_errors():
    opt = eqopt.SkipStep(eqopt.SGD(0.1), LARGE)
    message = r"SkipStep: `value` must be one real number, .* \(3,\)"
    with pytest.raises(ValueError, match=message):
        opt.step(grads(), opt.init(PARAMS), PARAMS, value=jnp.ones(3))
