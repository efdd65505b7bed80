"""Functions as transformations."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqopt


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
    for other, message in (
        ({"w": None}, r"has None at `\['w'\]`, but its argument has float32\[2\]"),
        ({"w": jnp.full(2, 1j)}, r"has complex64\[2\] at `\['w'\]`, but its argument"),
        ({"b": jnp.ones(2)}, r"at `\['b'\]`, but its argument has None"),
    ):
        opt = eqopt.Stateless(lambda g, p, other=other: {**g, **other})
        with pytest.raises(ValueError, match=message):
            opt.update(updates, None)
    opt = eqopt.StatelessWithTreeMap(lambda g, p: g.sum())
    with pytest.raises(ValueError, match=r"StatelessWithTreeMap: .*`\['w'\]`"):
        opt.update(updates, None)
