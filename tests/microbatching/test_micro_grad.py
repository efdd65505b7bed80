"""`micro_grad` against Optax, `eqx.filter_grad`, and its documentation."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

from eqopt.microbatching import AccumulationType, Accumulator, micro_grad

from ..interpreter import interpreted


SUM, MEAN = AccumulationType.SUM, AccumulationType.MEAN
CONCAT = AccumulationType.CONCAT


def squared_loss(params, features, targets):
    return 0.5 * jnp.mean((features @ params - targets) ** 2)


@pytest.mark.parametrize("size", [None, 1, 2, 3, 4])
@pytest.mark.costly
def test_documented_example(size):
    grad_fn = micro_grad(
        squared_loss,
        argnums=0,
        batch_argnums=(1, 2),
        accumulator=MEAN,
        transform_fn=lambda g: (g, g**2),
        metrics_fn=jnp.linalg.norm,
        microbatch_size=size,
    )
    features, targets = jnp.ones((4, 1)), jnp.array([0.0, 2.0, 4.0, 6.0])
    (grads, squared), aux = grad_fn(jnp.zeros(1), features, targets)
    assert grads.tolist() == [-3.0]
    assert squared.tolist() == [14.0]
    assert aux.values.tolist() == [0.0, 2.0, 8.0, 18.0]
    assert aux.metrics.tolist() == [0.0, 2.0, 4.0, 6.0]
    assert aux.aux is None


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


class Model(eqx.Module):
    mlp: eqx.nn.MLP
    permutation: jax.Array
    temperature: float
    name: str = eqx.field(static=True)


def model_loss(model, batch):
    x = model.mlp(batch["x"][model.permutation]) / model.temperature
    return optax.softmax_cross_entropy_with_integer_labels(x, batch["label"])


@pytest.mark.parametrize("size", [None, 4, 5])
@pytest.mark.slow
def test_it_differentiates_what_filter_grad_does(size, getkey):
    mlp = eqx.nn.MLP(3, 4, 8, 2, key=getkey())
    model = Model(mlp, jnp.array([2, 0, 1]), 2.0, "model")
    x, label = jr.normal(getkey(), (10, 3)), jnp.arange(10) % 4
    batch = {"x": x, "label": label, "unit": "pixel"}

    def mean_loss(model, batch):
        batch = batch["x"], batch["label"]
        losses = jax.vmap(lambda x, y: model_loss(model, {"x": x, "label": y}))(*batch)
        return jnp.mean(losses)

    grad_fn = interpreted(
        micro_grad(
            model_loss, keep_batch_dim=False, microbatch_size=size, accumulator=MEAN
        )
    )
    grads, aux = grad_fn(model, batch)
    value, expected = interpreted(eqx.filter_value_and_grad(mean_loss))(model, batch)
    assert jax.tree.structure(grads) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(grads), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert grads.permutation is None
    assert grads.temperature is None
    np.testing.assert_allclose(aux.values.mean(), value, rtol=1e-5)
    assert aux.metrics is None


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


def test_clipping_and_a_custom_accumulator(getkey):
    w, x = jr.normal(getkey(), (3,)), jr.normal(getkey(), (5, 3))
    rows = 2 * (x @ w)[:, None] * x
    norms = jnp.linalg.norm(rows, axis=1, keepdims=True)
    largest = Accumulator(
        init=lambda like: jnp.zeros(like.shape),
        update=lambda carry, value, index: jnp.maximum(carry, value),
        finalize=lambda carry: carry,
        aggregate=lambda values: jnp.max(values, axis=0),
    )

    def clip(g):
        norm = jnp.linalg.norm(g)
        return g * jnp.minimum(1, 1 / norm), norm

    grad_fn = micro_grad(
        lambda w, x: jnp.sum(w * x) ** 2,
        transform_fn=clip,
        metrics_fn=jnp.linalg.norm,
        accumulator=(SUM, largest),
        microbatch_size=2,
        keep_batch_dim=False,
    )
    (clipped, norm), aux = interpreted(grad_fn)(w, x)
    expected = jnp.sum(rows * jnp.minimum(1, 1 / norms), axis=0)
    np.testing.assert_allclose(clipped, expected, rtol=1e-5)
    np.testing.assert_allclose(norm, norms.max(), rtol=1e-5)
    np.testing.assert_allclose(aux.metrics, norms[:, 0], rtol=1e-5)


def test_traced_once_per_shape():
    count = 0

    def fun(w, x):
        nonlocal count
        count += 1
        return jnp.sum(w * x)

    grad_fn = eqx.filter_jit(micro_grad(fun, microbatch_size=2))
    for _ in range(2):
        grad_fn(jnp.float32(1), jnp.ones(6))
    assert count == 1
