import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt


PARAMS = {"w": jnp.ones((2, 2)), "b": jnp.ones(2), "fn": jnp.tanh}
GRADS = {"w": jnp.ones((2, 2)), "b": jnp.ones(2), "fn": None}
MASKS = {
    "tree": {"w": True, "b": False, "fn": False},
    "tree that says more": {"w": True, "b": False, "fn": True},
    "function": lambda params: jax.tree.map(lambda p: p.ndim == 2, params),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("call", ["update", "step"])
def test_excluded_leaves_pass_and_have_no_state(mask, call):
    opt = eqopt.Masked(eqopt.Adam(0.5), mask)
    state = opt.init(PARAMS)
    assert state.inner_state[0].mu["b"] is None
    result, state = getattr(opt, call)(GRADS, state, PARAMS)
    if call == "update":
        np.testing.assert_allclose(result["w"], -0.5, rtol=1e-5)
        np.testing.assert_allclose(result["b"], 1.0)
    else:
        np.testing.assert_allclose(result["w"], 0.5, rtol=1e-5)
        np.testing.assert_allclose(result["b"], 2.0)
        assert result["fn"] is jnp.tanh


def test_a_prefix_is_a_mask():
    params = {"encoder": {"w": jnp.ones(2), "b": jnp.ones(2)}, "head": [jnp.ones(2)]}
    opt = eqopt.Masked(eqopt.Scale(3.0), {"encoder": True, "head": False})
    updates, _ = opt.update(params, opt.init(params), params)
    np.testing.assert_allclose(updates["encoder"]["b"], 3.0)
    np.testing.assert_allclose(updates["head"][0], 1.0)
    for everything, expected in ((True, 3.0), (False, 1.0)):
        opt = eqopt.Masked(eqopt.Scale(3.0), everything)
        updates, _ = opt.update(params, opt.init(params), params)
        np.testing.assert_allclose(updates["head"][0], expected)


def is_largest(params):
    most = max(p.size for p in jax.tree.leaves(params))
    return jax.tree.map(lambda p: p.size == most, params)


@pytest.mark.parametrize("call", ["update", "step"])
@pytest.mark.parametrize(
    "mask", [{"w": None, "b": True, "fn": None}, is_largest], ids=["tree", "function"]
)
def test_a_mask_in_a_mask_sees_the_part(mask, call):
    """Its values elsewhere do not matter, and a function gets nothing else."""
    inner = eqopt.AddDecayedWeights(1.0, mask)
    opt = eqopt.Masked(inner, {"w": False, "b": True, "fn": False})
    result, _ = getattr(opt, call)(GRADS, opt.init(PARAMS), PARAMS)
    by = 1.0 if call == "step" else 0.0
    np.testing.assert_allclose(result["w"], 1.0 + by)
    np.testing.assert_allclose(result["b"], 2.0 + by)


@pytest.mark.parametrize("call", ["update", "step"])
def test_a_mask_is_a_function_of_the_parameters(call):
    """It can depend on their dtypes, which may differ from the gradients' dtypes."""
    params = {"half": jnp.ones(2, jnp.bfloat16), "full": jnp.ones(2)}
    grads = {"half": jnp.ones(2), "full": jnp.ones(2)}
    is_half = lambda params: jax.tree.map(lambda p: p.dtype == jnp.bfloat16, params)
    opt = eqopt.Masked(eqopt.Scale(3.0), is_half)
    result, _ = getattr(opt, call)(grads, opt.init(params), params)
    by = 1.0 if call == "step" else 0.0
    np.testing.assert_allclose(result["half"].astype(jnp.float32), 3.0 + by)
    np.testing.assert_allclose(result["full"], 1.0 + by)


@pytest.mark.parametrize("name", ["Masked", "SelectiveTransform", "Partition"])
@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.costly
def test_a_choice_by_shape_does_not_see_gradients_of_examples(name, jit):
    params = {"w": jnp.ones((2, 3)), "b": jnp.ones(3)}
    grads = jax.tree.map(lambda p: jnp.stack([p] * 4), params)
    dpsgd = eqopt.DPSGD(0.1, 1.0, 0.0, key=0)
    parts = {True: dpsgd, False: eqopt.SetToZero()}
    make = {
        "Masked": lambda f: eqopt.Masked(dpsgd, f),
        "SelectiveTransform": lambda f: eqopt.SelectiveTransform(dpsgd, freeze_mask=f),
        "Partition": lambda f: eqopt.Partition(parts, f),
    }[name]
    of_each = lambda choose: lambda params: jax.tree.map(choose, params)

    def update(opt):
        run = lambda grads: opt.update(grads, opt.init(params))[0]
        return (jax.jit(run) if jit else run)(grads)

    with pytest.raises(ValueError, match=f"^{name}: the parameters are needed"):
        update(make(of_each(lambda p: p.ndim > 1)))
    # Key paths do not depend on the shapes, and the last axis is the same.
    update(make(eqopt.groups.path("w")))
    update(make(of_each(lambda p: p.shape[-1] == 3)))
