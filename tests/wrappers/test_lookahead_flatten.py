import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt


SOME = {"a": jnp.ones((2, 2)), "b": jnp.full(3, 2.0)}


def test_lookahead_by_hand():
    """Two fast steps of -1, then half of the way back."""
    opt = eqopt.Lookahead(eqopt.SGD(1.0), 2, 0.5)
    params, grads = jnp.zeros(()), jnp.ones(())
    state = opt.init(params)
    path = []
    for _ in range(4):
        params, state = opt.step(grads, state, params)
        path.append((float(params), float(opt.eval_params(state, params))))
    assert path == [(-1, 0), (-1, -1), (-2, -1), (-2, -2)]


def test_lookahead_restarts_the_inner_optimizer():
    opt = eqopt.Lookahead(eqopt.Adam(0.1), 2, 0.5, reset_state=True)
    params = jnp.ones(3)
    state = opt.init(params)
    counts = []
    for _ in range(4):
        params, state = opt.step(params, state, params)
        counts.append(int(state.fast_state[0].count))
    assert counts == [1, 0, 1, 0]


def test_flatten_gives_one_vector_and_the_dtypes_back():
    """The vector has the widest of their dtypes."""
    params = {
        "half": jnp.ones((2, 3), jnp.bfloat16),
        "single": jnp.ones(4),
        "empty": jnp.ones((0, 3)),
        "none": None,
        "scalar": jnp.ones(()),
    }
    opt = eqopt.Flatten(eqopt.Adam(0.1))
    state = opt.init(params)
    mu = state.inner_state[0].mu
    assert (mu.shape, mu.dtype) == ((11,), jnp.float32)
    grads = eqx.filter(params, eqx.is_array)
    updates, state = opt.update(grads, state, params)
    for before, after in zip(
        jax.tree.leaves(grads), jax.tree.leaves(updates), strict=True
    ):
        assert (before.shape, before.dtype) == (after.shape, after.dtype)
    new, _ = opt.step(grads, state, params)
    np.testing.assert_allclose(new["single"], 0.9, rtol=1e-5)


@pytest.mark.parametrize("params_dtype", [jnp.float32, jnp.bfloat16])
def test_a_flat_step_is_rounded_once(params_dtype):
    """By the parameters' dtype, not by the gradients'."""
    params = {"a": jnp.full(2, 3.0, params_dtype), "b": jnp.ones(3, params_dtype)}
    grads = jax.tree.map(lambda p: jnp.full_like(p, 0.7, jnp.bfloat16), params)
    opt = eqopt.SGD(0.3)
    flat, alone = (
        o.step(grads, o.init(params), params)[0] for o in (eqopt.Flatten(opt), opt)
    )
    assert eqx.tree_equal(flat, alone)


@pytest.mark.parametrize(
    ("inner", "extra"),
    [
        (eqopt.CorrectByMARS(is_approx=False, max_norm=None), {"previous_grad": SOME}),
        (
            eqopt.aggregating.TrackPerElementMeanAndVarianceWithEMA(),
            {"sum_sq_diff_grads": SOME, "sample_size": 4},
        ),
    ],
    ids=["previous_grad", "sum_sq_diff_grads"],
)
@pytest.mark.parametrize("params", [None, SOME], ids=["without params", "params"])
def test_flatten_takes_gradients_as_extra_arguments(inner, extra, params):
    opt = eqopt.Flatten(inner)
    flat, _ = opt.update(SOME, opt.init(SOME), params, **extra)
    alone, _ = inner.update(SOME, inner.init(SOME), params, **extra)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), flat, alone)


@pytest.mark.parametrize("call", ["update", "step"])
def test_a_reset_leaves_frozen_parts_without_state(call):
    model = {"trained": jnp.ones(2), "frozen": jnp.ones(3)}
    part = {"trained": jnp.ones(2), "frozen": None}
    opt = eqopt.Lookahead(eqopt.Adam(0.1), 1, 0.5, reset_state=True)
    state = opt.init(part)
    _, new = getattr(opt, call)(part, state, model)
    assert jax.tree.structure(new) == jax.tree.structure(state)


@pytest.mark.parametrize(
    "opt",
    [
        eqopt.Lookahead(eqopt.SGD(0.1), 2, 0.5),
        eqopt.OuterNesterov(eqopt.SGD(0.1), 2),
        eqopt.SAM(eqopt.SGD(0.1)),
    ],
    ids=lambda opt: type(opt).__name__,
)
def test_a_gradient_without_slow_parameters(opt):
    """The inner optimizer has no state, so that nothing else sees the mistake."""
    params = {"a": jnp.ones(2), "b": jnp.ones(3)}
    state = opt.init({**params, "b": None})
    with pytest.raises(ValueError, match=r"`updates` has a value at `\['b'\]`, which"):
        opt.step(params, state, params)


def test_flatten_with_other_shapes_of_the_same_size():
    opt = eqopt.Flatten(eqopt.Trace(0.9))
    model, other = ({"a": jnp.ones(n), "b": jnp.ones(5 - n)} for n in (2, 3))
    state, rest = (
        opt.init(model),
        r" has shape \(3,\) at `\['a'\]`, but .* had shape \(2,\)",
    )
    for call in (opt.step, opt.update):
        with pytest.raises(ValueError, match=f"Flatten: `updates`{rest}"):
            call(other, state, other)
    with pytest.raises(ValueError, match=f"Flatten: `params`{rest}"):
        opt.eval_params(state, other)
