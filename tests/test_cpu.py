"""Code that only a CPU compiles changes no results, and stays on the CPU."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt
from eqopt._cpu.order import after, materialized
from eqopt._cpu.slots import Order, reordered

from .interpreter import interpreted, on_an_accelerator


X, FIRST = jnp.arange(6.0).reshape(2, 3), jnp.ones(4)


@pytest.mark.parametrize("first", [FIRST, -FIRST, X, jnp.zeros((0, 2)), jnp.ones(())])
@pytest.mark.parametrize("x", [X, X.astype(jnp.bfloat16), 1j * X.astype("complex64")])
@pytest.mark.slow
def test_after_is_the_identity(first, x):
    for fn in (after, jax.jit(after)):
        np.testing.assert_array_equal(fn(first, x), x)
        np.testing.assert_array_equal(jax.vmap(fn)(first[None], x[None]), x[None])
        np.testing.assert_array_equal(jax.vmap(fn, (None, 0))(first, x[None]), x[None])


@pytest.mark.slow
def test_derivatives():
    total = lambda x: jnp.sum(after(FIRST, x) * sum(materialized([x, 2 * x])))
    for fn in (total, jax.jit(total)):
        np.testing.assert_allclose(jax.grad(fn)(X), 6 * X)
        np.testing.assert_allclose(jax.jvp(fn, (X,), (X,))[1], jnp.sum(6 * X * X))
        np.testing.assert_allclose(jax.vmap(jax.grad(fn))(X[None])[0], 6 * X)


@pytest.mark.parametrize(
    "order",
    [
        Order(last=(0,)),
        Order(last=(1,)),
        Order(last=(1, 0)),
        Order(first=(0,)),
        Order(first=(0,), last=(1,)),
        Order(last=(1,), earlier=(0,)),
        Order(first=(1,), earlier=(0,)),
    ],
)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.costly
def test_slots_in_order(order, dtype):
    def run(packed, g, mu, nu):
        mu = mu + packed * g
        return g - mu, [mu.astype(dtype), {"small": nu.sum(), "nu": nu * g}]

    arguments = jnp.asarray(2.0), X, X + 1, X + 2
    expected = run(*arguments)
    for fn in (reordered, jax.jit(reordered, static_argnums=(0, 1, 2))):
        found = fn(run, run, order, *arguments)
        assert jax.tree.structure(found) == jax.tree.structure(expected)
        jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.complex64])
def test_slots_in_a_chain(dtype):
    """On a TPU, the last slots wait for the result, and change no value."""

    def run(packed, g, mu, nu):
        mu = mu + packed * g
        return g - mu, [mu, {"small": nu.sum(), "nu": nu * g}, g]

    arguments = [jnp.asarray(x, dtype) for x in (2, X, X + 1, X + 2)]
    in_order = lambda *arguments: reordered(run, run, Order(last=(1,)), *arguments)
    comparisons = {}
    for platform in ("cuda", "tpu"):
        with on_an_accelerator(platform):
            found = interpreted(in_order)(*arguments)
        jax.tree.map(np.testing.assert_array_equal, found, run(*arguments))
        lowered = jax.jit(in_order).trace(*arguments)
        text = lowered.lower(lowering_platforms=(platform,)).as_text()
        comparisons[platform] = text.count("stablehlo.compare")
    # One for each slot, except for the first one, which the result reads, and the sum.
    assert comparisons == {"cuda": 0, "tpu": 2}


PARAMS = {"a": jnp.linspace(-1.0, 2.0, 12).reshape(3, 4), "b": jnp.ones(5)}


@pytest.mark.parametrize(
    "opt",
    [
        eqopt.Adadelta(),
        eqopt.Adadelta(rho=0.0),
        eqopt.Lion(0.1),
        eqopt.Chain(eqopt.ScaleByLion(mode="smooth"), eqopt.Scale(-0.1)),
        eqopt.Chain(eqopt.ScaleByLion(mode="refined"), eqopt.Scale(-0.1)),
        eqopt.MADGRAD(0.1),
        eqopt.Rprop(0.1),
        eqopt.GPA(eqopt.AdamW(0.1, weight_decay=0.1), sees="y"),
        eqopt.EMANesterov(eqopt.AdamW(0.1, weight_decay=0.1)),
        eqopt.OuterNesterov(eqopt.AdamW(0.1, weight_decay=0.1), 2),
        eqopt.ScheduleFreeAdamW(0.1, weight_decay=0.1),
        eqopt.ScheduleFreePlus(0.1, weight_decay=20.0, anneal_steps=3),
        eqopt.StableAdamW(0.1, weight_decay=0.1),
        # A clipped leaf, from the second step on.
        eqopt.StableSPAM(0.1, weight_decay=0.1, gamma3=0.9),
    ],
    ids=repr,
)
@pytest.mark.parametrize(
    "dtype",
    [
        jnp.float32,
        pytest.param(jnp.bfloat16, marks=pytest.mark.slow),
        pytest.param(jnp.complex64, marks=pytest.mark.slow),
    ],
)
@pytest.mark.costly
def test_the_equation_as_written_agrees(opt, dtype):
    """Without `jit`, the equation runs as written."""
    params = jax.tree.map(lambda p: p.astype(dtype), PARAMS)
    step = jax.jit(functools.partial(opt.step, value=jnp.ones(())))
    ours, state = params, opt.init(params)
    written, other = params, opt.init(params)
    for i in range(4):
        grads = jax.tree.map(lambda p, i=i: jnp.cos(3 * p + i).astype(dtype), PARAMS)
        ours, state = step(grads, state, ours)
        with jax.disable_jit():
            written, other = opt.step(grads, other, written, value=jnp.ones(()))
    tolerance = 2e-2 if dtype == jnp.bfloat16 else 1e-5
    for x, y in zip(*map(jax.tree.leaves, (ours, written)), strict=True):
        np.testing.assert_allclose(
            np.asarray(x, complex), np.asarray(y, complex), tolerance, tolerance
        )
