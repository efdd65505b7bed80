"""A batch that is sharded over 8 devices stays where it is."""

import contextlib
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from benchmarks.scaling.collectives import collectives
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import eqopt
from eqopt.microbatching import (
    AccumulationType,
    clipped_grad,
    micro_grad,
    micro_value_and_grad,
    micro_vmap,
    microbatch,
    reshape_batch_axis,
)

from ..interpreter import interpreted
from ..meshes import mesh_of
from .subjects import normal, score


MEAN, SUM, CONCAT = (AccumulationType[x] for x in ("MEAN", "SUM", "CONCAT"))
MODEL = eqx.nn.MLP(3, 2, 4, 1, key=jr.key(0))
BATCH = np.asarray(jr.normal(jr.key(1), (64, 3)))
NORM, STATE = eqx.nn.make_with_state(eqx.nn.BatchNorm)(3, "batch", mode="batch")
LAYERS = {
    "conv": eqx.nn.Conv1d(1, 2, 2, key=jr.key(3)),
    "table": eqx.nn.Embedding(5, 4, key=jr.key(4)),
    "norm": eqx.nn.LayerNorm(4),
}
ADAM = eqopt.Adam(1e-2)


def mean_loss(model, x):
    return jnp.mean(jax.vmap(model)(x) ** 2)


def weights_of(x):
    return jnp.round(jnp.abs(x[:, 0]))


def weighted_loss(model, x):
    w = weights_of(x)
    return jnp.sum(w * jnp.mean(jax.vmap(model)(x) ** 2, 1)) / jnp.sum(w)


def noisy(model, x, *, key):
    return mean_loss(model, x * jr.normal(key, (1, 3)))


def noisy_rows(model, x, *, key):
    return jnp.mean(jax.vmap(lambda x, key: noisy(model, x[None], key=key))(x, key))


def with_key(fun, names=()):
    grad_fn = micro_value_and_grad(fun, batch_argnames=names, microbatch_size=16)
    return lambda model, x: grad_fn(model, x, key=jr.key(2))


def with_state(model, x):
    def fun(model, x, state):
        axes = (0, None)
        y, new = jax.vmap(NORM, axes, axes, axis_name="batch")(x, state)
        return mean_loss(model, y), new

    return micro_value_and_grad(fun, True, microbatch_size=16)(model, x, STATE)


def with_layers(_, x):
    def one(model, x):
        i = (jnp.abs(x[:2]) * 4).astype(jnp.int32)
        h = model["norm"](model["conv"](x[None]).ravel() + model["table"](i[0]))
        return jnp.sum(jnp.tanh(model["table"].weight @ h) ** 2)

    layers = lambda model, x: jnp.mean(jax.vmap(one, (None, 0))(model, x))
    given = {"microbatch_size": 16, "weights": weights_of(x)}
    return clipped_grad(layers, 0.1, **given)(LAYERS, x)


def train(weigh, x, model, adam_state):
    fun, weights = (weighted_loss, weights_of(x)) if weigh else (mean_loss, None)
    value_and_grad = micro_value_and_grad(fun, microbatch_size=16, weights=weights)
    value, grads = value_and_grad(model, x)
    return value, *ADAM.step(grads, adam_state, model)


SPREAD = [
    with_key(noisy),
    with_key(noisy_rows, "key"),
    with_state,
    lambda model, x: micro_grad(
        mean_loss, microbatch_size=16, accumulator=MEAN, weights=weights_of(x)
    )(model, x),
    lambda model, x: micro_vmap(
        lambda x, *, key: x + jr.normal(key, (3,)), microbatch_size=16, accumulator=SUM
    )(x, key=jr.key(2)),
    microbatch(lambda model, x: jax.vmap(model)(x), 1, 16, CONCAT),
    clipped_grad(mean_loss, 0.1, microbatch_size=16, accumulator=MEAN),
    with_layers,
    lambda model, x: reshape_batch_axis(x, 16),
]
RAGGED = microbatch(eqx.filter_value_and_grad(mean_loss), 1, 24, MEAN)


def check_on_devices(fun, mesh, axis="data", moves=False, donated=()):
    """What it is for the whole batch on one device, and nothing of the batch moves."""
    spread = jax.device_put(BATCH, NamedSharding(mesh, P(axis)))
    here = (BATCH, MODEL, ADAM.init(MODEL)) if donated else (MODEL, BATCH)
    given = (spread, *donated) if donated else (MODEL, spread)
    donate = "all-except-first" if donated else "none"
    expected = interpreted(fun)(*here)
    with jax.set_mesh(mesh):
        compiled = eqx.filter_jit(fun, donate=donate).lower(*given).compile()
        actual = eqx.filter(compiled(*given), eqx.is_array)
    expected = jax.tree.leaves(eqx.filter(expected, eqx.is_array))
    for a, b in zip(jax.tree.leaves(actual), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    sent = {one.kind for one in collectives(compiled.compiled.as_text())}
    assert moves or not sent & {"all-gather", "all-to-all", "collective-permute"}
    return actual


@pytest.mark.slow
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_eight_devices(kind):
    mesh, out = mesh_of(kind, data=8), None
    for fun in SPREAD:
        # `eqx.nn.BatchNorm` and a look-up fail by themselves on a mesh of explicit axes.
        if kind is AxisType.Auto or fun not in (with_state, with_layers):
            out = check_on_devices(fun, mesh)
    assert out.sharding.spec[:2] == (None, "data")
    everywhere = NamedSharding(mesh, P())
    put = lambda x: jax.device_put(jnp.array(x), everywhere) if eqx.is_array(x) else x
    for weigh in (False, True):
        donated = jax.tree.map(put, (MODEL, ADAM.init(MODEL)))
        check_on_devices(functools.partial(train, weigh), mesh, donated=donated)
        # The learning rate in the state is not read, and so is no input.
        arrays = jax.tree.leaves(eqx.filter(donated, eqx.is_array))
        assert all(a.is_deleted() for a in arrays if a.ndim > 0)
    check_on_devices(RAGGED, mesh, None)
    refused = pytest.raises(ValueError, match="8 ways, so `microbatch_size=24` must")
    with refused if kind is AxisType.Explicit else contextlib.nullcontext():
        check_on_devices(RAGGED, mesh, moves=True)


# Inside `jax.shard_map`

W, X = {"w": normal(3, 2), "b": jnp.ones(2)}, normal(8, 3, seed=1)
SIZES = [(None, None), (2, None), (3, None), (3, 2)]


def loss(w, x):
    return score(x @ w["w"] + w["b"])


def on_two_devices(fun, check, out_specs):
    specs = P(), P("data")
    mesh = mesh_of(data=2)
    return jax.jit(
        jax.shard_map(
            fun, mesh=mesh, in_specs=specs, out_specs=out_specs, check_vma=check
        )
    )(W, X)


def norm_of(grads):
    return jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))


@functools.cache
def on_one_device():
    return clipped_grad(loss, 2.0, keep_batch_dim=False)(W, X)


# Each method with each size, and `check_vma` in turn.
METHODS = {"ghost": 0, "per_example": 1, "micro_grad": 0}
CASES = [
    (method, (i + j) % 2 == 0, *sizes)
    for method, i in METHODS.items()
    for j, sizes in enumerate(SIZES)
]


@pytest.mark.parametrize(("method", "check", "size", "number"), CASES)
@pytest.mark.slow
def test_examples_of_other_devices_do_not_mix(method, check, size, number):
    """JAX would add up gradients of replicated parameters over all devices."""
    options = {"keep_batch_dim": False, "microbatch_size": size}
    expected, examples = on_one_device()
    assert 0 < np.sum(examples.norms > 2) < 8

    def gradients(w, x):
        if method == "micro_grad":
            clip = lambda g: jax.tree.map(
                lambda x: x * jnp.minimum(1, 2 / norm_of(g)), g
            )
            found, aux = micro_grad(
                loss, transform_fn=clip, metrics_fn=norm_of, **options
            )(w, x)
            return lax.psum(found, "data"), aux.metrics
        # A traced number of microbatches, which needs another loop.
        count = None if number is None else jnp.sum(jnp.ones(number, int))
        found, examples = clipped_grad(
            loss, 2.0, method=method, num_real_microbatches=count, **options
        )(w, x)
        return lax.psum(found, "data"), examples.norms

    total, norms = on_two_devices(gradients, check, (P(), P("data")))
    np.testing.assert_allclose(norms, examples.norms, rtol=1e-5)
    for name, x in total.items():
        np.testing.assert_allclose(x, expected[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("size", [None, 2, 3])
@pytest.mark.slow
def test_gradients_of_means_are_as_without_microbatches(check, size):
    mean = lambda w, x: jnp.mean(jax.vmap(loss, (None, 0))(w, x))
    found, expected = (
        on_two_devices(lambda w, x, f=f: lax.pmean(f(w, x), "data"), check, (P(), P()))
        for f in (
            micro_value_and_grad(mean, microbatch_size=size),
            eqx.filter_value_and_grad(mean),
        )
    )
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
