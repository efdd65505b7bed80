"""`micro_grad` against Optax and `jax.grad`."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

from eqopt.microbatching import AccumulationType, micro_grad


SUM, MEAN = AccumulationType.SUM, AccumulationType.MEAN
CONCAT = AccumulationType.CONCAT


@pytest.mark.parametrize("keep_batch_dim", [True, False])
@pytest.mark.slow
def test_parity_with_optax(keep_batch_dim, getkey):
    params = {"w": jr.normal(getkey(), (3,)), "b": jr.normal(getkey(), ())}
    batch = {"x": jr.normal(getkey(), (6, 3)), "y": jr.normal(getkey(), (6,))}
    noise = jr.normal(getkey(), (6,))

    def loss(params, batch, *, noise):
        assert batch["x"].ndim == 1 + keep_batch_dim
        assert noise.ndim == 0
        residual = batch["x"] @ params["w"] + params["b"] - batch["y"] + noise
        return jnp.sum(residual**2), {"residual": residual}

    arguments = {
        "has_aux": True,
        "argnums": (0,),
        "keep_batch_dim": keep_batch_dim,
        "microbatch_size": 2,
        "transform_fn": lambda g: {kind.name: g for kind in AccumulationType},
        "metrics_fn": lambda g: optax.tree.norm(g),
    }
    kinds = {kind.name: kind for kind in AccumulationType}
    ours = micro_grad(loss, accumulator=kinds, **arguments)
    kinds = {name: optax.microbatching.AccumulationType[name] for name in kinds}
    theirs = optax.microbatching.micro_grad(loss, accumulator=kinds, **arguments)
    both = jax.jit(lambda *a, **kw: (ours(*a, **kw), theirs(*a, **kw)))
    actual, expected = both(params, batch, noise=noise)
    assert actual[1]._fields == expected[1]._fields
    actual, expected = jax.tree.leaves(actual), jax.tree.leaves(expected)
    for a, b in zip(actual, expected, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_several_argnums_and_the_batch_itself(getkey):
    w, x = jr.normal(getkey(), (3,)), jr.normal(getkey(), (5, 3))

    def fun(w, x):
        return jnp.sum(jnp.tanh(x @ w))

    @eqx.filter_jit
    def grads(argnums, accumulator, keep):
        return micro_grad(
            fun,
            argnums=argnums,
            accumulator=accumulator,
            keep_batch_dim=keep,
            microbatch_size=2,
        )(w, x)[0]

    expected = jax.jit(jax.grad(fun, (0, 1)))(w, x)
    # Each example is a batch of size one, and so is the gradient for it.
    for argnums in ((0, 1), (-2, -1)):
        dw, dx = grads(argnums, (SUM, CONCAT), True)
        np.testing.assert_allclose(dw, expected[0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(dx[:, 0], expected[1], rtol=1e-5, atol=1e-6)
    (dx,) = grads((1,), CONCAT, False)
    np.testing.assert_allclose(dx, expected[1], rtol=1e-5, atol=1e-6)
