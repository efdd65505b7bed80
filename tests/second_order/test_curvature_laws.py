"""What holds for all functions of the namespace, and their errors."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from eqopt.second_order import fisher_diag, hessian_diag, hvp


pytestmark = pytest.mark.slow


FUNCTIONS = {
    "hvp": lambda loss, params, *args: hvp(loss, params, params, *args),
    "exact": hessian_diag,
    "estimate": lambda *args: hessian_diag(*args, num_samples=2, key=0),
    "fisher": fisher_diag,
    "per_example": lambda loss, params, *args: fisher_diag(
        lambda p, x: loss(p, x), params, *[x[None] for x in args], per_example=True
    ),
}
JITTED = {name: eqx.filter_jit(fun) for name, fun in FUNCTIONS.items()}
functions = pytest.mark.parametrize("fun", JITTED.values(), ids=JITTED)


class Net(eqx.Module):
    """With all that a model may have besides arrays of floats."""

    layer: eqx.nn.Linear
    scale: jax.Array
    steps: jax.Array
    activation: object
    rate: float
    nothing: None = None

    def __call__(self, x):
        return self.rate * self.activation(self.scale * self.layer(x)[0])


def _net(dtype=jnp.float32):
    layer = eqx.nn.Linear(2, 1, dtype=jnp.float32, key=jr.key(0))
    net = Net(layer, jnp.ones((), dtype), jnp.arange(3), jnp.tanh, 0.5)
    return jax.tree.map(
        lambda x: x.astype(dtype) if eqx.is_inexact_array(x) else x, net
    )


def _loss(net, x):
    return net(x) ** 2


def _x(dtype=jnp.float32):
    return jnp.array([1.0, -0.5], dtype)


@functions
def test_whole_models(fun):
    found = fun(_loss, _net(), _x())
    assert isinstance(found, Net)
    assert found.steps is None
    assert found.activation is None
    assert found.rate is None
    assert found.layer.weight.shape == (1, 2)
    assert found.scale.shape == ()


@functions
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32, jnp.float64])
def test_dtypes(fun, dtype, x64):
    with x64():
        found, exact = fun(_loss, _net(dtype), _x(dtype)), fun(_loss, _net(), _x())
        for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(exact), strict=True):
            assert x.dtype == dtype
            x, y = np.asarray(x, np.float32), np.asarray(y, np.float32)
            np.testing.assert_allclose(x, y, rtol=0.3, atol=0.05)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_jit_vmap_and_grad(name):
    net, fun = _net(), JITTED[name]
    eager = FUNCTIONS[name](_loss, net, _x())
    jitted = fun(_loss, net, _x())
    batch = jnp.stack([_x(), 2 * _x()])
    rows = eqx.filter_vmap(lambda x: fun(_loss, net, x))(batch)
    for x, y, z in zip(*map(jax.tree.leaves, (eager, jitted, rows)), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(x, z[0], rtol=1e-5, atol=1e-6)
    total = lambda net: sum(jnp.sum(x) for x in jax.tree.leaves(fun(_loss, net, _x())))
    for g in jax.tree.leaves(eqx.filter_jit(eqx.filter_grad(total))(net)):
        assert jnp.isfinite(g).all()


@functions
def test_no_parameters(fun):
    assert fun(lambda p, x: jnp.sum(x), {"a": 1, "b": jnp.arange(2)}, _x()) == {
        "a": None,
        "b": None,
    }


@functions
def test_empty_arrays(fun):
    loss = lambda p, x: jnp.sum(p["a"]) + jnp.sum((p["b"] * x) ** 2)
    found = fun(loss, {"a": jnp.ones((0, 3)), "b": jnp.ones(2)}, _x())
    assert found["a"].shape == (0, 3)
    assert (found["b"] != 0).all()


def test_squares_do_not_underflow_in_half_precision():
    loss = lambda p, x: jnp.sum(p * x)
    x = jnp.full((100, 1), 2e-4, jnp.float16).at[0].set(0.1)
    found = fisher_diag(loss, jnp.ones(1, jnp.float16), x, per_example=True)
    wide = jnp.mean(x.astype(jnp.float32) ** 2)
    np.testing.assert_allclose(found.astype(jnp.float32), wide[None], rtol=1e-3)


def test_complex_parameters():
    """Each entry is the mean of those for the real and the imaginary part."""
    z = jnp.array([1 + 2j, -0.5 + 0.3j], jnp.complex64)
    real = lambda x, y: jnp.sum(x**4 + 2 * y**3 + x * y) + x[0] * y[1]
    loss = lambda z: real(z.real, z.imag)
    xx, yy = (jax.hessian(real, i)(z.real, z.imag) for i in (0, 1))
    mean = (jnp.diag(xx) + jnp.diag(yy)) / 2
    exact = eqx.filter_jit(hessian_diag)(loss, z)
    assert exact.dtype == jnp.complex64
    np.testing.assert_allclose(exact, mean, rtol=1e-5)
    keys = jr.split(jr.key(1), 4000)
    estimate = jax.jit(lambda key: hessian_diag(loss, z, num_samples=1, key=key))
    samples = jax.vmap(estimate)(keys).real
    error = jnp.abs(jnp.mean(samples, axis=0) - mean)
    assert (error < 4 * jnp.std(samples, axis=0) / jnp.sqrt(4000.0)).all()
    gx, gy = (jax.grad(real, i)(z.real, z.imag) for i in (0, 1))
    np.testing.assert_allclose(fisher_diag(loss, z), (gx**2 + gy**2) / 2, rtol=1e-5)
    product = jax.jit(lambda z: hvp(loss, jnp.full(2, 1 + 1j), z))(z)
    step = lambda t: jax.grad(loss)(z + t.astype(z.dtype) * (1 + 1j))
    slope = jax.jvp(step, (jnp.zeros(()),), (jnp.ones(()),))[1]
    np.testing.assert_allclose(product, slope, rtol=1e-5)


def test_directions_are_cast():
    found = hvp(lambda p: jnp.sum(p**2), jnp.ones(2), jnp.ones(2, jnp.bfloat16))
    assert found.dtype == jnp.bfloat16
    np.testing.assert_array_equal(found.astype(jnp.float32), [2.0, 2.0])


def test_memory_of_the_exact_diagonal_grows_with_the_batch_size():
    p = jnp.ones(4096)

    def temporary(batch_size):
        fun = lambda p: hessian_diag(lambda p: jnp.sum(p**4), p, batch_size=batch_size)
        analysis = jax.jit(fun).lower(p).compile().memory_analysis()
        return analysis.temp_size_in_bytes

    assert temporary(4) < 16 * p.nbytes
    assert temporary(256) < 3 * 256 * p.nbytes


P, V = {"a": jnp.ones(2)}, jnp.ones(2)


def _sum(p, *args):
    return jnp.sum(p["a"] ** 2)


WRONG = [
    (lambda: hvp(_sum, V, P), ["`v`", "['a']", "like the gradient", "ravel_pytree"]),
    (lambda: hvp(_sum, {"a": jnp.ones(3)}, P), ["`v`", "(3,)", "(2,)", "['a']"]),
    (lambda: hvp(lambda p: p["a"], P, P), ["hvp", "`loss`", "f32[2]", "mean"]),
    (lambda: hessian_diag(_sum, P, key=3), ["`num_samples` is None", "exact"]),
    (lambda: hessian_diag(_sum, P, num_samples=0, key=3), ["`num_samples`", "1", "0"]),
    (lambda: hessian_diag(_sum, P, batch_size=0), ["`batch_size`", "at least 1", "0"]),
    (
        lambda: fisher_diag(lambda p: p["a"], P),
        ["fisher_diag", "`negative_log_likelihood`"],
    ),
    (lambda: fisher_diag(_sum, P, microbatch_size=2), ["`microbatch_size` needs"]),
    (lambda: fisher_diag(_sum, P, 2, per_example=True), ["no batch argument"]),
]


@pytest.mark.parametrize(("call", "parts"), WRONG)
def test_errors(call, parts):
    with pytest.raises(ValueError, match=re.escape(parts[0])) as info:
        call()
    for part in parts:
        assert part in str(info.value), str(info.value)
