"""The path on which the gradients of each layer's parameters are computed."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from eqopt.microbatching import gradient_paths

from .subjects import (
    SUBJECTS,
    make_stack,
    mlp,
    rows,
    stacked,
)


def paths_of(name):
    make, fun, x, _, _ = SUBJECTS[name]
    # From only the shapes, so that nothing is computed.
    fun = gradient_paths(fun, keep_batch_dim=False)
    return eqx.filter_eval_shape(fun, eqx.filter_eval_shape(make), x)


@pytest.mark.parametrize("name", SUBJECTS)
@pytest.mark.costly
def test_paths(name):
    found = set(jax.tree.leaves(paths_of(name)))
    assert found == set(SUBJECTS[name].paths.split())


def test_a_loop_over_layers_with_large_activations():
    fun = lambda model, x: jax.vmap(stacked, (None, 0))(model, x).sum()
    few, many = (
        gradient_paths(fun, keep_batch_dim=False)(make_stack(), rows(n, 3))
        for n in (2, 100)
    )
    assert few.weight == "per_example" and many.weight == "direct"


def test_arguments():
    def fun(x, scale, model, *, y):
        return jnp.sum(jax.vmap(model)(x) * scale * y), x

    paths = gradient_paths(fun, True, (-1, 1), batch_argnums=0)
    model = mlp()()
    of_model, of_scale = paths(rows(3), jnp.ones((1, 1)), model, y=rows(1, 1))
    assert of_scale == "direct"
    assert set(jax.tree.leaves(of_model)) == {"ghost", "direct"}
    assert jax.tree.structure(of_model) == jax.tree.structure(
        eqx.filter(model, eqx.is_inexact_array)
    )
