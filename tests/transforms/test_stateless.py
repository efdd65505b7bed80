"""Functions as transformations."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqopt


class Pull(eqx.Module):
    strength: jax.Array

    def __call__(self, g, p):
        return g + self.strength * p


def test_functions_with_data():
    """An array in a Module is data: differentiable, and a new value is no new trace."""
    params = {"w": jnp.array([1.0, 2.0]), "n": None, "f": jnp.tanh}
    grads = {"w": jnp.ones(2), "n": None, "f": None}

    def slope(opt):
        return opt.update(grads, None, params)[0]["w"].sum()

    traced = eqx.debug.assert_max_traces(eqx.filter_grad(slope), max_traces=1)
    for strength in (1.0, 2.0):
        opt = eqopt.StatelessWithTreeMap(Pull(jnp.asarray(strength)))
        assert eqx.filter_jit(traced)(opt).f.strength == 3


def test_functions_of_whole_models():
    """Parameters are `None` wherever updates are."""
    model = eqx.nn.MLP(2, 1, 3, 1, key=jr.key(0))
    grads = jax.tree.map(jnp.ones_like, eqx.filter(model, eqx.is_inexact_array))
    grads = eqx.tree_at(lambda g: g.layers[0], grads, None)
    pull = lambda g, p: jax.tree.map(lambda g, p: g + 2 * p, g, p)
    updates, _ = eqopt.Stateless(pull).update(grads, None, model)
    expected = 1 + 2 * model.layers[1].weight
    np.testing.assert_allclose(updates.layers[1].weight, expected)
    assert updates.layers[0] is None


def test_functions_without_parameters():
    double = lambda g, p: 2 * g if p is None else g
    for opt in (
        eqopt.StatelessWithTreeMap(double),
        eqopt.Stateless(lambda g, p: jax.tree.map(lambda g: double(g, p), g)),
    ):
        updates, _ = opt.update([jnp.ones(2, jnp.bfloat16)], None)
        assert updates[0].dtype == jnp.bfloat16 and (updates[0] == 2).all()


def test_functions_that_change_the_tree():
    opt = eqopt.Stateless(lambda g, p: {"w": g["w"]})
    with pytest.raises(
        ValueError, match=r"Only `its argument` has a leaf at `\['b'\]`"
    ):
        opt.update({"w": jnp.ones(2), "b": jnp.ones(2)}, None)
    updates = {"w": jnp.ones(2), "b": None}
    for other, found in (
        ({"w": None}, "None"),
        ({"w": jnp.ones(1)}, r"float32\[1\]"),
        ({"w": jnp.full(2, 1j)}, r"complex64\[2\]"),
    ):
        opt = eqopt.Stateless(lambda g, p, other=other: {**g, **other})
        message = rf"has {found} at `\['w'\]`, but its argument has float32\[2\]"
        with pytest.raises(ValueError, match=message):
            opt.update(updates, None)
    opt = eqopt.Stateless(lambda g, p: {**g, "b": p["w"]})
    with pytest.raises(ValueError, match=r"at `\['b'\]`, but its argument has None"):
        opt.update(updates, None, {"w": jnp.ones(2), "b": jnp.ones(2)})


def test_functions_that_change_a_shape():
    opt = eqopt.StatelessWithTreeMap(lambda g, p: g.sum())
    with pytest.raises(ValueError, match=r"StatelessWithTreeMap: .*`\['w'\]`"):
        opt.update({"w": jnp.ones(2)}, None)
