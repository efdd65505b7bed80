"""Against closed forms, within four standard errors, and against Optax."""

import re

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

from eqopt.perturbations import Gumbel, Normal, make_perturbed_fun


X = jnp.array([0.3, -0.2, 0.5])
SIGMA = 0.5

baselines = pytest.mark.parametrize(
    "use_baseline", [True, pytest.param(False, marks=pytest.mark.slow)]
)


def _step(x):
    return (x > 0).astype(jnp.float32)


def _assert_mean(fun, expected, count=200):
    """That `fun` of a key is right on average."""
    samples = jax.jit(jax.vmap(fun))(jr.split(jr.key(1), count))
    error = jnp.abs(jnp.mean(samples, axis=0) - expected)
    assert (error < 4 * jnp.std(samples, axis=0) / count**0.5 + 1e-6).all()


@pytest.mark.slow
@baselines
def test_step_becomes_the_normal_distribution_function(use_baseline):
    def smooth(key, x, sigma):
        return make_perturbed_fun(_step, 50, sigma, Normal(), use_baseline)(key, x)

    exact = lambda x, sigma: jax.scipy.stats.norm.cdf(x / sigma)
    x, sigma = jnp.array(0.3), jnp.array(SIGMA)
    _assert_mean(lambda key: smooth(key, x, sigma), exact(x, sigma))
    for i in (0, 1):
        slope = jax.grad(smooth, argnums=i + 1)
        _assert_mean(
            lambda key, f=slope: f(key, x, sigma), jax.grad(exact, i)(x, sigma)
        )
    bend, exact_bend = (
        jax.grad(jax.grad(f, argnums=i), argnums=i)
        for f, i in ((smooth, 1), (exact, 0))
    )
    _assert_mean(lambda key: bend(key, x, sigma), exact_bend(x, sigma), 1000)


@pytest.mark.parametrize("noise", ["Gumbel", "Normal"])
@baselines
@pytest.mark.slow
def test_is_that_of_optax(noise, use_baseline, standard_promotion):
    def fun(x):
        return {"a": jnp.sin(x["u"]) * x["v"], "b": jnp.argmax(x["u"])}

    x = {"u": X, "v": jnp.array(2.0)}
    here, there = {"Gumbel": Gumbel, "Normal": Normal}[noise], optax.perturbations
    ours = make_perturbed_fun(fun, 20, 0.3, here(), use_baseline)
    theirs = there.make_perturbed_fun(
        fun, 20, 0.3, getattr(there, noise)(), use_baseline
    )
    both = lambda f: (f(jr.key(3), x), jax.jacobian(f, argnums=1)(jr.key(3), x))
    a, b = (jax.jit(lambda f=f: both(f))() for f in (ours, theirs))
    close = lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-4, atol=2e-4)
    jax.tree.map(close, a, b)


@pytest.mark.slow
def test_optax_derivative_by_sigma_is_biased(standard_promotion):
    """The mean of z^2 sigma^2 is sigma^2, whose derivative at 0.5 is 1."""

    def slope(make, noise):
        keys = jr.split(jr.key(5), 200)
        value = lambda s, key: make(jnp.square, 200, s, noise)(key, jnp.array(0.0))
        return jnp.mean(jax.jit(jax.vmap(jax.grad(value), (None, 0)))(SIGMA, keys))

    there = optax.perturbations
    assert abs(slope(make_perturbed_fun, Normal()) - 2 * SIGMA) < 0.1
    assert (
        abs(slope(there.make_perturbed_fun, there.Normal()) - 3 * 2 * SIGMA / 2) < 0.1
    )


def test_fun_is_not_differentiated():
    @jax.custom_jvp
    def fun(x):
        return x

    @fun.defjvp
    def _(primals, tangents):
        raise AssertionError

    assert jnp.isfinite(jax.grad(make_perturbed_fun(fun, 10), argnums=1)(0, X[0]))


@pytest.mark.parametrize(
    "dtype",
    [jnp.float16, jnp.bfloat16, jnp.float32],
)
@pytest.mark.slow
def test_dtypes(dtype, x64):
    with x64():
        smooth = make_perturbed_fun(lambda x: (x * 2, x > 0), 10)
        out = smooth(jr.key(0), X.astype(dtype))
        assert [y.dtype for y in out] == [dtype, jnp.float32]
        total = lambda x: jnp.sum(smooth(jr.key(0), x)[0])
        grad = jax.grad(total)(X.astype(dtype))
        assert grad.dtype == dtype
        assert jnp.isfinite(grad).all()


@pytest.mark.slow
def test_numpy_arrays_in_float64():
    """Without x64, these are float32, and JAX does not warn about it."""
    smooth = make_perturbed_fun(lambda x: 2 * x["a"], 10, sigma=np.float64(0.1))
    found = smooth(0, {"a": np.asarray(X, np.float64), "b": None})
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, smooth(0, {"a": X, "b": None}), rtol=1e-6)


@pytest.mark.slow
def test_baseline_that_is_not_finite():
    smooth = make_perturbed_fun(lambda x: jnp.abs(x) ** -0.25, 100, noise=Normal())
    value, grad = jax.value_and_grad(smooth, argnums=1)(jr.key(0), jnp.array(0.0))
    assert jnp.isfinite(value)
    assert jnp.isfinite(grad)


def test_noise_is_data():
    assert Gumbel() == Gumbel()
    assert hash(Normal()) == hash(Normal())
    z = jnp.array([-1.0, 0.0, 2.0])
    scipy_stats = pytest.importorskip("scipy.stats")
    np.testing.assert_allclose(
        Gumbel().log_prob(z), scipy_stats.gumbel_r.logpdf(z), rtol=1e-5
    )
    difference = Normal().log_prob(z) - scipy_stats.norm.logpdf(z)
    np.testing.assert_allclose(difference, difference[0], rtol=1e-5)


def _identity(x):
    return x


WRONG = [
    (lambda: make_perturbed_fun(_identity, 0), "`num_samples` must be"),
    (lambda: make_perturbed_fun(_identity, sigma=0.0), "(0, inf), but is 0"),
    (
        lambda: make_perturbed_fun(_identity)(0, 1),
        "is 1, without floating-point arrays",
    ),
]


@pytest.mark.parametrize(("call", "part"), WRONG)
def test_errors(call, part):
    with pytest.raises(ValueError, match=re.escape(part)):
        call()
