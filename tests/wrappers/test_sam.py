"""Sharpness-aware minimization: by hand, on a model, in both modes, and with NaNs."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt
from eqopt._trees.stored import is_stored

from ..test_temporary_memory import temporary


MATRIX = jnp.array([[3.0, 1.0], [1.0, 0.5]])
START = jnp.array([1.0, -2.0])
NAN = jnp.full(2, jnp.nan)


def slope(w):
    return MATRIX @ w


def test_by_hand():
    """The two gradients of the paper, and a step of SGD from the point of the first."""
    opt = eqopt.SAM(eqopt.SGD(0.1))
    w, state = START, opt.init(START)
    w, state = opt.step(slope(w), state, w)
    g = np.asarray(slope(START))
    worse = START + 0.05 * g / np.linalg.norm(g)
    np.testing.assert_allclose(w, worse, rtol=1e-6)
    np.testing.assert_array_equal(opt.eval_params(state, w), START)
    assert int(state.steps_since_sync) == 1
    w, state = opt.step(slope(w), state, w)
    np.testing.assert_allclose(w, START - 0.1 * slope(worse), rtol=1e-6)
    np.testing.assert_array_equal(opt.eval_params(state, w), w)
    assert int(state.steps_since_sync) == 0


@pytest.mark.parametrize("call", ["step", "update"])
@pytest.mark.parametrize("period", [1, 2, 4])
@pytest.mark.parametrize("reset_state", [False, True])
@pytest.mark.costly
def test_opaque_is_transparent(period, reset_state, call):
    """With gradients of one function, both modes do the same."""
    make = lambda opaque: eqopt.SAM(
        eqopt.Adam(0.05), eqopt.SGD(0.03, 0.5), period, reset_state, opaque
    )

    @eqx.filter_jit
    def one(opt, w, state):
        if call == "step":
            return opt.step(slope(w), state, w, grad_fn=slope)
        updates, state = opt.update(slope(w), state, w, grad_fn=slope)
        return eqopt.apply_updates(w, updates), state

    def trained(opt, steps):
        w, state = START, opt.init(START)
        for _ in range(steps):
            w, state = one(opt, w, state)
        return w, state

    opaque, transparent = trained(make(True), 3), trained(make(False), 3 * period)
    np.testing.assert_allclose(opaque[0], transparent[0], rtol=1e-5)
    for a, b in zip(
        jax.tree.leaves((opaque[1].opt_state, opaque[1].adv_state)),
        jax.tree.leaves((transparent[1].opt_state, transparent[1].adv_state)),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_period_1_is_the_inner_optimizer():
    opt, inner = eqopt.SAM(eqopt.Adam(0.1), sync_period=1), eqopt.Adam(0.1)
    (w, state), (v, inner_state) = ((START, o.init(START)) for o in (opt, inner))
    for _ in range(3):
        w, state = opt.step(slope(w), state, w)
        v, inner_state = inner.step(slope(v), inner_state, v)
        np.testing.assert_allclose(w, v, rtol=1e-5)


def test_the_number_of_the_adversarial_step():
    """It is an argument only if the function has one for it."""
    seen = []

    def numbered(w, i):
        seen.append(i)
        return slope(w)

    def with_default(w, scale=1.0):
        return slope(w) * scale

    opt = eqopt.SAM(eqopt.SGD(0.1), sync_period=4, opaque_mode=True)
    results = [
        opt.step(slope(START), opt.init(START), START, grad_fn=grad_fn)[0]
        for grad_fn in (numbered, slope, with_default, jax.jit(slope))
    ]
    assert seen == [0, 1, 2]
    for result in results:
        np.testing.assert_allclose(result, results[0], rtol=1e-6)


def test_gradients_are_averaged_over_an_axis():
    opt = eqopt.SAM(eqopt.SGD(0.1), opaque_mode=True, batch_axis_name="batch")
    scales = jnp.array([0.5, 1.5])  # the mean is 1

    def one(scale):
        grad_fn = lambda w: scale * slope(w)
        return opt.step(slope(START), opt.init(START), START, grad_fn=grad_fn)[0]

    several = jax.vmap(one, axis_name="batch")(scales)
    alone = eqopt.SAM(eqopt.SGD(0.1), opaque_mode=True)
    expected, _ = alone.step(slope(START), alone.init(START), START, grad_fn=slope)
    np.testing.assert_allclose(several, [expected, expected], rtol=1e-6)


def test_a_nan_does_not_pass_a_guard_inside():
    """It reaches neither the point to return to nor the inner state."""
    opt = eqopt.SAM(eqopt.ApplyIfFinite(eqopt.Adam(0.1), 2))
    state = opt.init(START)
    w, state = opt.step(NAN, state, START)
    assert bool(jnp.isnan(w).all())
    np.testing.assert_array_equal(opt.eval_params(state, w), START)
    w, state = opt.step(slope(w), state, w)
    np.testing.assert_array_equal(w, START)
    assert int(state.opt_state.total_notfinite) == 1
    expected, expected_state = START, opt.init(START)
    for _ in range(2):
        w, state = opt.step(slope(w), state, w)
        expected, expected_state = opt.step(slope(expected), expected_state, expected)
    np.testing.assert_array_equal(w, expected)


def matmuls(params):
    return jax.grad(lambda p: sum(jnp.sum(jnp.tanh(x @ x.T)) for x in p))(params)


@pytest.mark.parametrize(
    "opt",
    [
        eqopt.SAM(eqopt.AdamW(0.1), eqopt.SGD(0.1, 0.9), 3),
        eqopt.SAM(eqopt.Lookahead(eqopt.AdamW(0.1), 3, 0.5)),
    ],
    ids=repr,
)
@pytest.mark.costly
def test_transparent_steps_need_no_memory(opt):
    assert temporary(opt) < 0.01


def test_an_opaque_step_needs_two_copies_of_the_parameters():
    """It holds the adversarial parameters and their gradients, and little more."""
    opt = eqopt.SAM(eqopt.AdamW(0.1), opaque_mode=True)
    assert temporary(opt, grad_fn=matmuls) < 2.5


def test_errors():
    message = "SAM: `batch_axis_name` needs `opaque_mode=True`"
    with pytest.raises(ValueError, match=message):
        eqopt.SAM(eqopt.SGD(0.1), batch_axis_name="batch")
    opt, params = eqopt.SAM(eqopt.SGD(0.1), opaque_mode=True), {"w": START}
    message = r"SAM: the extra argument `grad_fn` is needed(?s:.*) grad_fn=...\)`"
    with pytest.raises(ValueError, match=message):
        opt.step(params, opt.init(params), params)
    message = r"`grad_fn\(params\)` has another tree structure(?s:.*)`\['v'\]`"
    with pytest.raises(ValueError, match=message):
        other = lambda params: {"v": START}
        opt.step(params, opt.init(params), params, grad_fn=other)


STORAGES = eqopt.storage.BlockwiseQuantized(), eqopt.storage.Float8()


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.costly
def test_a_stored_state_restores_the_parameters_exactly(storage):
    sam = eqopt.SAM(eqopt.SGD(0.0, momentum=0.9))
    opt = eqopt.StoreState(sam, storage, eqopt.groups.everything)
    params = jnp.linspace(0.1, 1.0, 7)
    state, now = opt.init(params), params
    for _ in range(2):
        now, state = opt.step(jnp.cos(params), state, now)
    np.testing.assert_array_equal(now, params)
    inner = state.inner_state
    assert is_stored(inner.opt_state[0].trace) and not is_stored(inner.cache)


def test_parameters_outside_jit_are_not_in_the_state():
    """So that both can be donated."""
    opt, params = eqopt.SAM(eqopt.SGD(0.1)), {"a": jnp.ones(2), "b": jnp.ones(2)}
    state = opt.init(params)
    for _ in range(2):
        params, state = opt.step({"a": params["a"], "b": None}, state, params)
    assert params["b"] is not state.cache["b"]
