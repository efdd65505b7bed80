import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt


PARAMS = {"a": jnp.ones(3), "b": [jnp.ones((2, 2)), None]}


def grads(bad=None):
    tree = jax.tree.map(jnp.ones_like, PARAMS)
    if bad is not None:
        tree["b"][0] = tree["b"][0].at[1, 0].set(bad)
    return tree


def bits(tree):
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(tree)]


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf, -jnp.inf])
@pytest.mark.parametrize("call", ["update", "step"])
@pytest.mark.costly
def test_a_bad_gradient_changes_counters_only(bad, call):
    opt = eqopt.ApplyIfFinite(eqopt.AdamW(0.1), 3)
    _, state = opt.step(grads(), opt.init(PARAMS), PARAMS)
    method = jax.jit(getattr(opt, call))
    result, new = method(grads(bad), state, PARAMS)
    if call == "step":
        assert bits(result) == bits(PARAMS)
    else:
        assert not any(x.any() for x in jax.tree.leaves(result))
    assert bits(new.inner_state) == bits(state.inner_state)
    assert (new.notfinite_count, new.total_notfinite) == (1, 1)
    assert not new.last_finite


def test_gives_up_and_recovers():
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


def test_no_parameters():
    opt = eqopt.ApplyIfFinite(eqopt.Adam(0.1), 2)
    _, state = opt.update({}, opt.init({}), {})
    assert state.last_finite


def test_counters_stay_at_their_maximum():
    """With the largest limit, all bad steps are skipped; no counter turns negative."""
    last = jnp.asarray(2**31 - 1, jnp.int32)
    opt = eqopt.ApplyIfFinite(eqopt.SGD(0.1), 2**31 - 1)
    counts = lambda s: (s.notfinite_count, s.total_notfinite)
    state = eqx.tree_at(counts, opt.init(PARAMS), (last - 1, last - 1))
    for _ in range(3):
        params, state = opt.step(grads(jnp.nan), state, PARAMS)
        assert counts(state) == (last, last)
        assert bits(params) == bits(PARAMS)
