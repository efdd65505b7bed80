"""One more example moves a clipped sum by no more than the bound on its norm."""

import functools

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax import lax

import eqopt
from eqopt.microbatching import AccumulationType, clipped_grad
from eqopt.numerics import common_dtype


MOST = 1 + 1e-3
clipped_sum = functools.partial(clipped_grad, l2_norm_clip=1.0, keep_batch_dim=False)
METHODS = ["auto", "per_example"]
DTYPES = [jnp.bfloat16, jnp.float16, jnp.float32, jnp.complex64]
ROWS, SIZE = 1100, 1024


def length(tree):
    leaves = [np.asarray(x) for x in jax.tree.leaves(tree)]
    leaves = [x.astype(np.result_type(x.dtype, np.float64)) for x in leaves]
    return float(np.sqrt(sum(np.sum(np.abs(x) ** 2) for x in leaves)))


def apart(a, b):
    minus = lambda x, y: np.asarray(x) - np.asarray(y)
    return length(jax.tree.map(minus, a, b))


USES = {
    "product": lambda w, x: jnp.sum(x @ w),
    "elements": lambda w, x: jnp.sum(x * w),
    "checkpoint": jax.checkpoint(lambda w, x: jnp.sum(x @ w)),
}


# Each use with each dtype, and both methods in turn.
CASES = [
    (use, dtype, METHODS[(i + j) % 2])
    for i, use in enumerate(USES)
    for j, dtype in enumerate(DTYPES)
]


@pytest.mark.parametrize(("use", "dtype", "method"), CASES)
@pytest.mark.slow
def test_one_of_many(use, dtype, method):
    """The sum is large enough for half precision to lose or to double an example."""
    w = jnp.zeros(SIZE, dtype)
    x = jnp.full((ROWS + 1, SIZE), 1 / 16).astype(dtype)
    fun = lambda w, x: jnp.real(USES[use](w, x)).astype(jnp.float32)
    for size in (None, 256):
        given = {"method": method, "microbatch_size": size}
        total = jax.jit(
            lambda weights, given=given: clipped_sum(fun, weights=weights, **given)(
                w, x
            )[0]
        )
        with_it, without = total(jnp.ones(ROWS + 1)), total(jnp.arange(ROWS + 1) > 0)
        assert with_it.dtype == common_dtype(dtype, jnp.float32)
        assert 0.999 < apart(with_it, without) <= MOST


@pytest.mark.parametrize("kind", list(AccumulationType)[:3])
@pytest.mark.costly
def test_sums_and_means_are_not_rounded(kind):
    grad_fn = clipped_sum(
        lambda w, x: jnp.sum(x @ w["a"]).astype(jnp.float32),
        accumulator=kind,
        microbatch_size=2,
        groups={"a": "a", "unused": "b"},
    )
    w = {"a": jnp.ones(3, jnp.bfloat16), "unused": jnp.ones(2, jnp.float16)}
    total, _ = jax.jit(lambda *args: grad_fn(*args))(w, jnp.ones((5, 3), jnp.bfloat16))
    assert {x.dtype for x in jax.tree.leaves(total)} == {jnp.dtype(jnp.float32)}
    expected = np.ones(3) / np.sqrt(3) * (5 if kind is AccumulationType.SUM else 1)
    np.testing.assert_allclose(total["a"], expected, 1e-6)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("clipped", [True, False])
@pytest.mark.slow
def test_noise_comes_before_rounding(dtype, clipped):
    """In half precision, a sum over 1100 examples would only be a multiple of 4."""
    params = jnp.zeros(SIZE, dtype)
    x = jnp.ones((ROWS, 1), dtype)
    one = lambda w, x: jnp.sum(x * w[:1]).astype(jnp.float32)
    grads = jax.vmap(jax.grad(one), (None, 0))(params, x)
    if clipped:
        grads, _ = clipped_sum(one)(params, x)
    opt = eqopt.DPSGD(1.0, 1.0, 1e-3, 0, batch_size=ROWS - 1, clipped=clipped)
    new, _ = jax.jit(opt.step)(grads, opt.init(params), params)
    assert new.dtype == dtype
    noise, _ = opt.update(grads, opt.init(params), params)
    assert noise.dtype == (jnp.float32 if clipped else dtype)
    np.testing.assert_allclose(noise[0], -ROWS / (ROWS - 1), 1e-5 if clipped else 1e-2)


# Two rows of one example that cancel, except for a small difference.
WIDTH, OUT = 64, 48


def pair_of(row, rest):
    return jnp.stack([row, -row * (1 + rest)])


def convolution(w, x):
    x = x.reshape(1, 1, 2 * WIDTH)
    return jnp.sum(lax.conv_general_dilated(x, w, (WIDTH,), "VALID"))


def embedding(w, x):
    # The same row of a table twice; which one depends on the example.
    index = jnp.where(x[0, 0] > jnp.inf, 1, 0) * jnp.ones(2, jnp.int32)
    return jnp.sum(w[index] * x)


CANCELLING = {
    "product": ((WIDTH, OUT), lambda w, x: jnp.sum(x @ w)),
    "convolution": ((OUT, 1, WIDTH), convolution),
    "embedding": ((50, WIDTH), embedding),
    "tied": ((50, WIDTH), lambda w, x: embedding(w, x) + jnp.sum(x @ w.T)),
    "tied against itself": (
        (50, WIDTH),
        lambda w, x: embedding(w, x) - (x @ w.T)[1, 0],
    ),
    "transposed": ((WIDTH, WIDTH), lambda w, x: jnp.sum(x @ w) + jnp.sum(w @ x.T)),
    "groups": (
        (2, 32, 24),
        lambda w, x: jnp.sum(jnp.einsum("thd,hdk->thk", x.reshape(2, 2, 32), w)),
    ),
    "complex": (
        (WIDTH, OUT),
        lambda w, x: jnp.sum(
            jnp.real(lax.complex(x, -x) @ w.astype(jnp.complex64) * jnp.complex64(1j))
        ),
    ),
}


@pytest.mark.parametrize(
    ("name", "method"),
    [*((name, "auto") for name in CANCELLING), ("product", "per_example")],
)
@pytest.mark.slow
def test_rows_that_cancel(name, method):
    shape, fun = CANCELLING[name]
    w = jr.normal(jr.key(0), shape)
    cases = [(size, rest) for size in (1e-3, 1, 1e3, 1e6) for rest in (1e-2, 1e-4, 0)]
    rows = jr.normal(jr.key(1), (len(cases), WIDTH))
    examples = [
        pair_of(row * size, rest) for row, (size, rest) in zip(rows, cases, strict=True)
    ]
    ordinary = jr.normal(jr.key(2), (30, 2, WIDTH))
    x = jnp.concatenate([jnp.stack(examples), ordinary])

    @jax.jit
    def total(weights):
        return clipped_sum(fun, method=method, weights=weights)(w, x)[0]

    everything = total(jnp.ones(len(x)))
    for i in range(len(cases)):
        alone = np.arange(len(x)) == i
        assert length(total(jnp.asarray(alone))) <= MOST
        assert apart(everything, total(jnp.asarray(~alone))) <= MOST


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.costly
def test_factors_whose_squares_are_out_of_range(rows, method):
    """Squares of one factor underflow, while squares of the other overflow."""
    w = jnp.zeros((WIDTH, 1000))
    fun = lambda w, x: jnp.sum((x[0] @ w) * x[1])
    sizes = [(1e-19, 1e18), (1e-22, 1e19), (1e-30, 1e32), (1e30, 1e-22), (1e25, 1e-20)]
    sizes += [(1e10, 1e10), (1e19, 1e18), (1e-10, 1e-10), (1e-38, 1e38)]

    @jax.jit
    def total(size):
        x = size[0] * jnp.ones((1, rows, WIDTH)), size[1][None]
        return clipped_sum(fun, method=method)(w, x)[0]

    for size in sizes:
        moved = total(jnp.array(size))
        assert np.isfinite(moved).all() and length(moved) <= MOST, size


@pytest.mark.slow
def test_a_leaf_that_is_nan_leaves_the_others_bounded():
    """The norm is NaN: what is finite adds nothing, what is NaN stays visible."""
    fun = lambda w, x: x[0] * w["a"] + x[1] * w["b"]
    w = {"a": jnp.zeros(()), "b": jnp.zeros(())}
    x = jnp.array([[jnp.nan, 1e6], [0.0, 0.5]])
    total, _ = clipped_sum(fun)(w, x)
    assert jnp.isnan(total["a"]) and total["b"] == 0.5
    grads = {"a": x[:, 0], "b": x[:, 1]}
    opt = eqopt.DifferentiallyPrivateAggregate(1.0, 0.0, key=0)
    mean, _ = opt.update(grads, opt.init(w), w)
    assert jnp.isnan(mean["a"]) and mean["b"] == 0.25
