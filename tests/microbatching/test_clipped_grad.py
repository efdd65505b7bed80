"""`clipped_grad` against gradients of examples, one by one."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqopt.microbatching import (
    AccumulationType,
    clipped_grad,
    micro_grad,
    per_example_grad_norms,
)
from eqopt.numerics import common_dtype

from ..interpreter import interpreted
from .subjects import ROWS, SUBJECTS, assert_close, mlp, normal, rows, score


SUM, MEAN = AccumulationType.SUM, AccumulationType.MEAN
RUNNING_MEAN = AccumulationType.RUNNING_MEAN


def batched(fun):
    """The same for a batch of examples."""

    def of_batch(model, x):
        arrays, static = eqx.partition(x, eqx.is_array)
        one = lambda arrays: fun(model, eqx.combine(arrays, static))
        return jnp.sum(jax.vmap(one)(arrays))

    return of_batch


def one_by_one(fun, model, x):
    """The oracle: values and gradients of all examples."""
    arrays, static = eqx.partition(x, eqx.is_array)
    one = lambda m, arrays: fun(m, eqx.combine(arrays, static))
    return eqx.filter_vmap(eqx.filter_value_and_grad(one), in_axes=(None, 0))(
        model, arrays
    )


def wide(x):
    dtype = np.complex128 if jnp.iscomplexobj(x) else np.float64
    return np.asarray(x).astype(dtype)


def norms_of(grads):
    leaves = [wide(g) for g in jax.tree.leaves(grads)]
    return np.sqrt(sum(np.sum(np.abs(g.reshape(len(g), -1)) ** 2, 1) for g in leaves))


def clipped_sum(grads, factors):
    return [np.tensordot(factors, wide(g), 1) for g in jax.tree.leaves(grads)]


def factors_of(norms, limit):
    return np.minimum(1, limit / np.where(norms == 0, 1, norms))


def assert_sums(actual, grads, factors, tolerance=2e-5):
    """Each close, relative to the largest example's part of all that is summed."""
    scale = max(np.max(factors * norms_of(grads)), 1e-6)
    actual = jax.tree.leaves(actual)
    parts = zip(
        actual, clipped_sum(grads, factors), jax.tree.leaves(grads), strict=True
    )
    for a, b, g in parts:
        assert a.dtype == common_dtype(g.dtype, jnp.float32)
        assert a.shape == g.shape[1:]
        np.testing.assert_allclose(wide(a) / scale, b / scale, atol=4 * tolerance)


# (keep_batch_dim, method, microbatch size, accumulator): each subject takes one of these
WAYS = [(False, "auto", None, SUM), (True, "auto", 2, MEAN)]
SLOW_WAYS = [
    *WAYS,
    (True, "per_example", 5, SUM),
    (True, "auto", None, RUNNING_MEAN),
    (False, "auto", 1, SUM),
    (False, "auto", 3, MEAN),
    (False, "per_example", 2, SUM),
]


def check(name, ways):
    make, fun, x, paths, tolerance = SUBJECTS[name]
    model = make()

    @eqx.filter_jit
    def everything(model, x, limit):
        out = []
        for keep, method, size, kind in ways:
            if method == "auto" and "per_example" not in paths:
                method = "ghost"
            grad_fn = clipped_grad(
                batched(fun) if keep else fun,
                limit,
                keep_batch_dim=keep,
                method=method,
                microbatch_size=size,
                accumulator=kind,
            )
            out.append(grad_fn(model, x))
        return out

    values, grads = eqx.filter_jit(one_by_one)(fun, model, x)
    norms = norms_of(grads)
    limit = float(min(norms) + max(norms)) / 2
    if name not in ("constant", "parameters alone"):
        assert 0 < np.sum(norms > limit) < ROWS
    for way, (total, examples) in zip(
        ways, everything(model, x, jnp.asarray(limit)), strict=True
    ):
        assert jax.tree.structure(total) == jax.tree.structure(grads)
        scale = max(norms.max(), 1e-6)
        np.testing.assert_allclose(
            examples.norms, norms, rtol=0, atol=tolerance * scale
        )
        np.testing.assert_allclose(examples.values, values, 1e-5, 1e-5)
        assert examples.aux is None
        divisor = 1 if way[-1] is SUM else ROWS
        assert_sums(total, grads, factors_of(norms, limit) / divisor, tolerance)


# One of each kind, for the quick set.
TELLING = (
    "mlp",
    "conv2d",
    "embedding",
    "attention",
    "scan over layers",
    "custom_vjp",
    "mixed precision",
    "complex parameter, real rows",
)


@pytest.mark.parametrize("name", TELLING)
@pytest.mark.costly
def test_agrees(name):
    check(name, [WAYS[TELLING.index(name) % 2]])


@pytest.mark.slow
@pytest.mark.parametrize("name", SUBJECTS)
def test_agrees_in_other_ways(name):
    """One of the ways for each, so that each way has been gone with one in seven."""
    check(name, [SLOW_WAYS[list(SUBJECTS).index(name) % len(SLOW_WAYS)]])


X = rows(3)


def layers(params, x):
    x = x @ params["a"]
    x = x + jnp.broadcast_to(params["bias"], x.shape)
    return score(jnp.tanh(x) @ params["b"])


def params_of_layers(seed=0):
    shapes = {"a": (3, 4), "bias": (4,), "b": (4, 2)}
    return {k: normal(*shape, seed=seed) for k, shape in shapes.items()}


PARAMS = params_of_layers()
clipped = functools.partial(clipped_grad, layers, keep_batch_dim=False)


@functools.cache
def of_each():
    """The gradients of all examples, their norms, and a limit that clips some."""
    grads = one_by_one(layers, PARAMS, X)[1]
    norms = norms_of(grads)
    return grads, norms, float(np.median(norms))


@interpreted
def called(fun, args, kwargs):
    return fun(*args, **kwargs)


def run(fun, *args, **kwargs):
    return called(fun, args, kwargs)


@pytest.mark.parametrize(
    "weights", [[0, 2, 1, 0.5, 3], pytest.param([0] * 5, marks=pytest.mark.slow)]
)
def test_weights(weights):
    w = np.array(weights, np.float64)
    x = jnp.where(w[:, None] == 0, jnp.array([jnp.nan, jnp.inf, 0]), X)
    grads, norms, limit = of_each()

    @jax.jit
    def both(x):
        out = []
        for kind in (SUM, MEAN, RUNNING_MEAN):
            size = 2 if kind is MEAN else None
            given = {"accumulator": kind, "weights": w.astype(np.float32)}
            out.append(clipped(limit, microbatch_size=size, **given)(PARAMS, x))
        return out

    for (total, examples), divisor in zip(
        both(x), (1, w.sum() or 1, w.sum() or 1), strict=True
    ):
        assert_sums(total, grads, w * factors_of(norms, limit) / divisor)
        np.testing.assert_allclose(examples.norms[w != 0], norms[w != 0], rtol=1e-4)


@pytest.mark.parametrize("kind", [SUM, MEAN, RUNNING_MEAN])
@pytest.mark.slow
def test_num_real_microbatches(kind):
    grads, norms, limit = of_each()

    @jax.jit
    def traced(k):
        given = {"accumulator": kind, "num_real_microbatches": k}
        return clipped(limit, microbatch_size=2, **given)(PARAMS, X)

    # Microbatches of 5 rows by 2: (0, 2), (1, 3), (4,).
    for k, executed in enumerate(([], [0, 2], [0, 1, 2, 3], range(5))):
        is_real = np.isin(np.arange(5), executed)
        divisor = {SUM: 1, MEAN: 5, RUNNING_MEAN: max(1, len(executed))}[kind]
        total, examples = traced(jnp.array(k))
        assert_sums(total, grads, is_real * factors_of(norms, limit) / divisor)
        np.testing.assert_allclose(examples.norms, is_real * norms, rtol=1e-4)
    assert traced._cache_size() == 1


GROUPS = {"a": "first", "bias": "first", "b": "second"}


@pytest.mark.parametrize("scalar", [True, False])
@pytest.mark.slow
def test_groups(scalar):
    grads = of_each()[0]
    parts = {"first": {k: grads[k] for k in ("a", "bias")}, "second": {"b": grads["b"]}}
    norms = {k: norms_of(part) for k, part in parts.items()}
    limits = {k: float(np.median(x)) for k, x in norms.items()}
    if scalar:
        limits = dict.fromkeys(limits, limits["first"])
    limit = limits["first"] if scalar else limits
    grad_fn = clipped(limit, microbatch_size=2, groups=lambda _: GROUPS)
    total, examples = run(grad_fn, PARAMS, X)
    for label, part in parts.items():
        np.testing.assert_allclose(examples.norms[label], norms[label], 1e-4)
        factors = factors_of(norms[label], limits[label])
        assert_sums({k: total[k] for k in part}, part, factors)


def test_groups_are_a_prefix():
    model = mlp()()
    prefix = eqx.tree_at(lambda m: m.layers, model, ("first", "rest", "rest"))
    prefix = eqx.filter(prefix, lambda x: isinstance(x, str))
    norms = per_example_grad_norms(lambda m, x: score(m(x)), keep_batch_dim=False)
    grouped = per_example_grad_norms(
        lambda m, x: score(m(x)), keep_batch_dim=False, groups=prefix
    )
    all_of_it, parts = run(lambda: (norms(model, X).norms, grouped(model, X).norms))
    assert sorted(parts) == ["first", "rest"]
    together = jnp.sqrt(parts["first"] ** 2 + parts["rest"] ** 2)
    np.testing.assert_allclose(together, all_of_it, rtol=1e-5)


@pytest.mark.slow
def test_clip_is_data():
    """Another limit is no new trace."""
    traced = eqx.debug.assert_max_traces(
        lambda limit, *args: clipped(limit)(*args), max_traces=1
    )
    grads_of = jax.jit(lambda *args: traced(*args))
    grads, norms, _ = of_each()
    for limit in (0.0, 0.3, 1e6, np.inf):
        total, _ = grads_of(jnp.array(limit), PARAMS, X)
        assert_sums(total, grads, factors_of(norms, limit))


@pytest.mark.parametrize("method", ["ghost", "per_example"])
@pytest.mark.slow
def test_gradients_that_are_too_large(method):
    grad_fn = clipped_grad(
        lambda w, x: jnp.sum(x @ w), 1.0, method=method, keep_batch_dim=False
    )
    total, examples = run(grad_fn, PARAMS["a"], X.at[0].set(1e25))
    without, _ = run(grad_fn, PARAMS["a"], X[1:])
    assert jnp.isinf(examples.norms[0])
    np.testing.assert_allclose(total, without, rtol=1e-5)
    assert jnp.isnan(run(grad_fn, PARAMS["a"], X.at[0].set(jnp.inf))[0]).all()


@pytest.mark.slow
def test_gradients_of_zero_and_nan():
    x = X.at[0].set(0).at[1].set(jnp.nan)
    grad_fn = clipped_grad(lambda w, x: jnp.sum(jnp.tanh(x @ w)), 0.1)
    total, examples = run(grad_fn, PARAMS["a"], x)
    assert examples.norms[0] == 0 and jnp.isnan(examples.norms[1])
    assert jnp.all(jnp.isnan(total))
    assert jnp.all(jnp.isfinite(examples.norms[2:]))
    assert jnp.isfinite(run(grad_fn, PARAMS["a"], x.at[1].set(0))[0]).all()
    # A sum with weights leaves it out.
    weights = jnp.array([1, 0, 1, 1, 1])
    grad_fn = clipped_grad(lambda w, x: jnp.sum(jnp.tanh(x @ w)), 0.1, weights=weights)
    assert jnp.isfinite(run(grad_fn, PARAMS["a"], x)[0]).all()


def test_what_cancels_has_no_negative_norm():
    """The terms of a norm may differ in sign, so that their sum is off by rounding."""
    x = normal(ROWS, 2, 40)
    x = jnp.concatenate([x, jnp.sum(x, 1, keepdims=True)], 1)
    fun = lambda w, x: jnp.sum((x @ w) * jnp.array([1.0, 1.0, -1.0])[:, None])
    norm_fn = per_example_grad_norms(fun, keep_batch_dim=False, method="ghost")
    norms = run(norm_fn, normal(40, 50), x).norms
    # Rounding is relative to the square of what cancels.
    scale = np.sqrt(50) * np.linalg.norm(x, axis=(1, 2))
    assert np.all((norms >= 0) & (norms <= 1e-3 * scale))


@pytest.mark.slow
def test_aux_and_several_argnums():
    def fun(bias, x, other, head, *, y):
        out = (jnp.tanh(x["x"] @ other["w"]) + bias) @ head
        alone = jnp.sum(head) * jnp.sum(y)
        aux = {"out": out, "name": "aux", "one": jnp.ones(()), "n": 3, "alone": alone}
        return score(out), aux

    args = normal(4), {"x": X, "unit": "m"}, {"w": normal(3, 4)}, normal(4, 2)
    y = rows()
    options = {"has_aux": True, "argnums": (-1, 0), "keep_batch_dim": False}
    for size in (None, 2):
        grad_fn = clipped_grad(fun, 1.0, microbatch_size=size, **options)
        total, examples = run(grad_fn, *args, y=y)
        wrt = args[3], args[0]
        oracle = lambda wrt, xy: fun(wrt[1], {"x": xy[0]}, args[2], wrt[0], y=xy[1])[0]
        grads = one_by_one(oracle, wrt, (X, y))[1]
        assert jax.tree.structure(total) == jax.tree.structure(wrt)
        norms = norms_of(grads)
        assert_sums(total, grads, factors_of(norms, 1.0))
        aux = examples.aux
        assert (aux["name"], aux["n"]) == ("aux", 3)
        assert aux["out"].shape == (5, 2) and aux["one"].tolist() == [1] * 5
        np.testing.assert_allclose(aux["alone"], jnp.sum(wrt[0]) * y, rtol=1e-5)


def test_used_in_aux_alone():
    fun = lambda w, x: (score(x @ w[0]), x @ w[1])
    w = [normal(3, 4), normal(3, 2)]
    total, examples = run(clipped_grad(fun, 1.0, True, keep_batch_dim=False), w, X)
    assert not np.any(total[1]) and np.any(total[0])
    np.testing.assert_allclose(examples.aux, X @ w[1], rtol=1e-5)


@pytest.mark.slow
def test_states_and_callbacks(getkey):
    norm, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(3, "batch", mode="batch")
    norm = eqx.nn.inference_mode(norm)
    seen = []

    def fun(w, x, state):
        jax.debug.callback(lambda x: seen.append(x), x)
        y, _ = jax.vmap(norm, axis_name="batch", in_axes=(0, None))(x, state)
        return score(y @ w)

    norms = run(per_example_grad_norms(fun), PARAMS["a"], X, state).norms
    plain = lambda w, x: score(norm(x, state)[0] @ w)
    grads = one_by_one(plain, PARAMS["a"], X)[1]
    np.testing.assert_allclose(norms, norms_of(grads), rtol=1e-4)
    jax.effects_barrier()
    assert len(seen) >= ROWS


@pytest.mark.slow
def test_vmap_over_models():
    models = [params_of_layers(seed) for seed in range(3)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *models)
    grad_fn = clipped_grad(layers, 1.0, microbatch_size=2)
    actual = jax.jit(jax.vmap(grad_fn, (0, None)))(stacked, X)
    jitted = jax.jit(grad_fn)
    expected = jax.tree.map(lambda *x: jnp.stack(x), *[jitted(m, X) for m in models])
    assert_close(actual, expected, 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("size", [None, 2])
@pytest.mark.parametrize("name", ["mlp", "tied head", "conv1d"])
def test_derivatives_of_norms(name, size):
    make, fun, x, _, _ = SUBJECTS[name]
    arrays, static = eqx.partition(make(), eqx.is_inexact_array)

    def fun_of(arrays, x):
        return fun(eqx.combine(arrays, static), x)

    def norms(arrays):
        norm_fn = per_example_grad_norms(
            fun_of, keep_batch_dim=False, microbatch_size=size
        )
        return jnp.sum(norm_fn(arrays, x).norms)

    def oracle(arrays):
        grads = jax.tree.leaves(one_by_one(fun_of, arrays, x)[1])
        return jnp.sum(jnp.sqrt(sum(jnp.sum(g.reshape(5, -1) ** 2, 1) for g in grads)))

    actual, expected = jax.jit(lambda a: (jax.grad(norms)(a), jax.grad(oracle)(a)))(
        arrays
    )
    assert_close(actual, expected, 1e-3)


@pytest.mark.parametrize("method", ["per_example", "ghost"])
@pytest.mark.slow
def test_derivatives_of_clipped_sums(method):
    """The factors of clipped examples depend on the parameters, too."""
    model, x, clip = normal(3, 4), rows(3), 0.7
    fun = lambda w, x: score(x @ w)

    def clipped(g):
        return g * jnp.minimum(1, clip / jnp.linalg.norm(g))

    exact = micro_grad(fun, keep_batch_dim=False, transform_fn=clipped)
    grad_fn = clipped_grad(fun, clip, keep_batch_dim=False, method=method)
    norms = grad_fn(model, x)[1].norms
    assert 0 < np.sum(norms > clip) < ROWS
    slope = lambda f: jax.jit(jax.grad(lambda w: score(f(w, x)[0])))(model)
    expected, actual = slope(exact), slope(grad_fn)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_float64_is_exact(x64):
    with x64():
        params = jax.tree.map(lambda p: p.astype(jnp.float64), PARAMS)
        x = X.astype(jnp.float64)
        weights = np.array([1 / 3, 0.1, 1.0, 0.0, 2 / 3])
        total, examples = run(clipped_grad(layers, 1.0, weights=weights), params, x)
        grads = one_by_one(layers, params, x)[1]
        norms = norms_of(grads)
        np.testing.assert_allclose(examples.norms, norms, rtol=1e-12)
        assert_sums(total, grads, weights * factors_of(norms, 1.0), 1e-12)


@pytest.mark.slow
def test_numpy_arrays_in_float64():
    """Without x64, these are float32, and JAX does not warn about it."""
    params = {"w": np.array([0.5, -1.0]), "unused": np.ones(2)}
    x = np.array([[3.0, 4.0], [0.3, 0.4]])
    grad = clipped_grad(lambda p, x: jnp.sum(x @ p["w"]), l2_norm_clip=np.float64(1.0))
    grads, _ = grad(params, x)
    assert {g.dtype for g in jax.tree.leaves(grads)} == {jnp.dtype(jnp.float32)}
    np.testing.assert_allclose(grads["w"], [0.9, 1.2], rtol=1e-6)
    np.testing.assert_array_equal(grads["unused"], [0.0, 0.0])
