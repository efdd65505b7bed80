"""Arguments with a number may be passed by name."""

import functools as ft

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from eqopt.microbatching import (
    AccumulationType,
    clipped_grad,
    micro_grad,
    micro_vmap,
    microbatch,
)


SUM, CONCAT = AccumulationType.SUM, AccumulationType.CONCAT
W, X = jnp.arange(3.0), jr.normal(jr.key(0), (4, 3))
CALLS = [lambda f: f(W, X), lambda f: f(W, x=X), lambda f: f(x=X, w=W)]


def loss(w, x):
    assert x.ndim == 2
    return jnp.mean(jnp.tanh(x @ w))


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    "make",
    [
        lambda: micro_grad(loss, microbatch_size=2),
        lambda: micro_grad(loss, argnums=(0, 1), accumulator=(SUM, CONCAT)),
        lambda: clipped_grad(loss, 0.1, microbatch_size=2),
        lambda: clipped_grad(loss, 0.1, weights=jnp.arange(4)),
        lambda: micro_vmap(lambda w, x: w @ x, (None, -2), microbatch_size=2),
        lambda: microbatch(loss, 1, 2),
    ],
)
@pytest.mark.costly
def test_every_function(make, call):
    out, expected = call(make()), make()(W, X)
    jax.tree.map(np.testing.assert_array_equal, out, expected)


@pytest.mark.parametrize("compiled", [lambda f: f, eqx.filter_jit])
@pytest.mark.parametrize("make", [micro_grad, ft.partial(clipped_grad, l2_norm_clip=1)])
def test_filter_jit_passes_by_position(make, compiled):
    def fun(w, x, scale, key):
        return jr.uniform(key) * scale.sum()

    key = jr.key(0)
    _, aux = compiled(make(fun))(W, X, scale=jnp.ones(3), key=key)
    expected = 3 * jax.vmap(jr.uniform)(jr.split(key, 4))
    np.testing.assert_allclose(aux.values, expected, rtol=1e-6)


def test_a_position_in_the_call_if_the_function_has_no_signature():
    x = jnp.arange(4)
    assert microbatch(dict, (), 2, argnames="x")(x=x)["x"].tolist() == [1, 5]
    variadic = lambda *args, **kwargs: sum(args) + kwargs["z"]
    fun = microbatch(variadic, (0, 1), 2, CONCAT, argnames="z")
    assert fun(x, x, z=x).tolist() == [0, 3, 6, 9]
