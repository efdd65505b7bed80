"""Against `jax.hessian`, closed forms, and Optax."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import eqopt
from eqopt.second_order import fisher_diag, hessian_diag, hvp


pytestmark = pytest.mark.slow


def _mlp():
    return eqx.nn.MLP(2, 1, 3, 1, activation=jnp.tanh, key=jr.key(0))


def _mse(model, x, y):
    return jnp.mean((jax.vmap(model)(x)[:, 0] - y) ** 2)


def _quartic(p, x, y):
    return jnp.sum(jnp.sin(p["w"] @ x) * y) + jnp.sum(p["b"] ** 4) * p["c"] ** 2


def _logistic(w, x, y):
    return jnp.mean(jnp.logaddexp(0.0, -y * (x @ w)))


def _dict():
    keys = jr.split(jr.key(1), 3)
    shapes = {"w": (2, 3), "b": (4,), "c": ()}
    return {n: jr.normal(k, s) for (n, s), k in zip(shapes.items(), keys, strict=True)}


X, Y = jr.normal(jr.key(2), (5, 2)), jnp.sign(jr.normal(jr.key(3), (5,)))
SUBJECTS = {
    "model": (_mse, _mlp(), (X, Y)),
    "dict": (_quartic, _dict(), (jr.normal(jr.key(4), (3,)), jnp.array([1.0, -2.0]))),
    "vector": (_logistic, jnp.array([0.3, -0.7]), (X, Y)),
    "scalar": (lambda p, x: x * p**3, jnp.array(0.5), (jnp.array(2.0),)),
}
subjects = pytest.mark.parametrize(
    ("loss", "params", "args"), SUBJECTS.values(), ids=SUBJECTS
)


def _dense(loss, params, args):
    """The Hessian as a matrix, and how to make a tree of a vector."""
    arrays, static = eqx.partition(params, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(arrays)
    fun = lambda p: loss(eqx.combine(unravel(p), static), *args)
    return jax.jit(jax.hessian(fun))(flat), unravel


def _ravel(tree):
    return ravel_pytree(tree)[0]


def _like_gradient(tree, params):
    grads = eqx.filter(params, eqx.is_inexact_array)
    assert jax.tree.structure(tree) == jax.tree.structure(grads)
    for x, p in zip(jax.tree.leaves(tree), jax.tree.leaves(grads), strict=True):
        assert x.shape == p.shape
        assert x.dtype == p.dtype


@subjects
def test_product(loss, params, args):
    hessian, unravel = _dense(loss, params, args)
    v = jr.normal(jr.key(5), hessian.shape[:1])
    product = eqx.filter_jit(hvp)(loss, unravel(v), params, *args)
    _like_gradient(product, params)
    np.testing.assert_allclose(_ravel(product), hessian @ v, rtol=1e-4, atol=1e-5)


@subjects
@pytest.mark.parametrize("batch_size", [1, 4])
def test_exact_diagonal(loss, params, args, batch_size):
    hessian, _ = _dense(loss, params, args)
    found = eqx.filter_jit(hessian_diag)(loss, params, *args, batch_size=batch_size)
    _like_gradient(found, params)
    np.testing.assert_allclose(_ravel(found), jnp.diag(hessian), rtol=1e-4, atol=1e-5)


@subjects
def test_estimate_is_unbiased(loss, params, args):
    """And has the variance that the documentation says."""
    hessian, _ = _dense(loss, params, args)
    count = 2000

    @eqx.filter_jit
    def estimates(params):
        one = lambda key: hessian_diag(loss, params, *args, num_samples=2, key=key)
        return jax.vmap(one)(jr.split(jr.key(6), count))

    samples = jax.vmap(_ravel)(estimates(params))
    off_diagonal = hessian - jnp.diag(jnp.diag(hessian))
    variance = jnp.sum(off_diagonal**2, axis=1) / 2
    error = jnp.abs(jnp.mean(samples, axis=0) - jnp.diag(hessian))
    assert (error < 4 * jnp.sqrt(variance / count) + 1e-5).all()
    np.testing.assert_allclose(jnp.var(samples, axis=0), variance, rtol=0.2, atol=1e-6)


def test_estimate_depends_on_the_key_alone():
    loss, params, args = SUBJECTS["dict"]
    fun = jax.jit(lambda key: hessian_diag(loss, params, *args, num_samples=3, key=key))
    of = lambda key: fun(key)["w"]
    seed = hessian_diag(loss, params, *args, num_samples=3, key=7)["w"]
    np.testing.assert_allclose(seed, of(jr.key(7)), rtol=1e-5)
    np.testing.assert_array_equal(of(jr.key(7)), of(jr.PRNGKey(7)))
    assert (of(jr.key(7)) != of(jr.key(8))).any()


def test_an_estimate_has_the_shapes_of_the_updates():
    opt, params = eqopt.HutchinsonDiagHessian(), {"a": jnp.ones(3)}
    message = (
        r"Hutch.*at `\['a'\]`: `updates` is float32\[2\], `params` is float32\[3\]"
    )
    with pytest.raises(ValueError, match=message):
        opt.update({"a": jnp.ones(2)}, opt.init(params), params, value_fn=jnp.sum)


def test_logistic_regression():
    w = jnp.array([0.3, -0.7])
    p = jax.nn.sigmoid(X @ w)[:, None]
    hessian = jnp.mean(p * (1 - p) * X**2, axis=0)
    np.testing.assert_allclose(hessian_diag(_logistic, w, X, Y), hessian, rtol=1e-5)
    fisher = jnp.mean((jax.nn.sigmoid(-Y * (X @ w))[:, None] * X) ** 2, axis=0)
    of_one = lambda w, x, y: jnp.logaddexp(0.0, -y * (x @ w))
    for size in (None, 1, 2, 5):
        fun = eqx.filter_jit(fisher_diag)
        found = fun(of_one, w, X, Y, per_example=True, microbatch_size=size)
        np.testing.assert_allclose(found, fisher, rtol=1e-5)
    square = jax.grad(_logistic)(w, X, Y) ** 2
    np.testing.assert_allclose(fisher_diag(_logistic, w, X, Y), square, rtol=1e-5)
    assert (square < fisher).all()


@pytest.mark.parametrize("as_array", [np.asarray, jnp.asarray])
def test_fisher_of_batches_that_are_trees(as_array):
    model = _mlp()
    batch = {"x": as_array(X), "y": as_array(Y)}
    of_one = lambda m, b, scale: scale * (m(b["x"])[0] - b["y"]) ** 2
    fun = eqx.filter_jit(fisher_diag) if as_array is jnp.asarray else fisher_diag
    found = fun(of_one, model, batch, 2.0, per_example=True, microbatch_size=2)
    _like_gradient(found, model)
    grad = eqx.filter_jit(eqx.filter_grad(of_one))
    rows = [grad(model, {"x": x, "y": y}, 2.0) for x, y in zip(X, Y, strict=True)]
    squares = jnp.stack([_ravel(g) ** 2 for g in rows])
    np.testing.assert_allclose(
        _ravel(found), squares.mean(axis=0), rtol=1e-4, atol=1e-7
    )


def test_numpy_arrays_in_float64():
    """Without x64, these are float32, and JAX does not warn about it."""
    w, x = np.array([0.5, -1.0]), np.array([[1.0, 2.0], [0.5, -1.0]])
    y = np.ones(2)
    square = lambda w, x, y: 0.5 * jnp.sum((jnp.asarray(x) @ w - jnp.asarray(y)) ** 2)
    for found, expected in (
        (hessian_diag(square, w, x, y), np.sum(x**2, 0)),
        (hvp(square, np.ones(2), w, x, y), x.T @ x @ np.ones(2)),
        (fisher_diag(square, w, x, y), (x.T @ (x @ w - y)) ** 2),
    ):
        assert found.dtype == jnp.float32
        np.testing.assert_allclose(found, expected, rtol=1e-5)
