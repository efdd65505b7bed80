"""Noise has the distribution it says, and comes from the key alone."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqopt
from eqopt.microbatching import clipped_grad
from eqopt.microbatching._ghost.factors import clip_factors


SIZE = 20000
LIKE = {"a": jnp.zeros(SIZE), "b": [jnp.zeros((SIZE // 4, 4)), None]}


def draws(opt, steps=2, like=LIKE):
    """The noise of each step, one row for each leaf."""
    state, rows = opt.init(like), []
    for _ in range(steps):
        updates, state = opt.update(like, state)
        rows.append(np.stack([x.ravel() for x in jax.tree.leaves(updates)]))
    return np.stack(rows)


def check_normal(x, variance):
    """Mean and variance within 4 standard errors."""
    n = x.size
    assert abs(x.mean()) < 4 * np.sqrt(variance / n)
    assert abs(x.var() - variance) < 4 * variance * np.sqrt(2 / n)


def check_independent(x):
    """All rows of `x`: correlations within 4 standard errors."""
    correlations = np.corrcoef(x.reshape(-1, x.shape[-1]))
    off_diagonal = correlations - np.eye(len(correlations))
    assert np.abs(off_diagonal).max() < 4 / np.sqrt(x.shape[-1])


@pytest.mark.slow
def test_distribution():
    noise = draws(eqopt.AddNoise(0.3, 0.6, key=1), steps=3)
    for t, in_step in enumerate(noise, start=1):
        for leaf in in_step:
            check_normal(leaf, 0.3 / t**0.6)
    check_independent(noise)


def test_complex_noise():
    like = jnp.zeros(SIZE, jnp.complex64)
    noise = draws(eqopt.AddNoise(0.3, 0.6, key=1), 1, like)[0, 0]
    check_normal(noise.real, 0.15)
    check_normal(noise.imag, 0.15)
    check_independent(np.stack([noise.real, noise.imag]))


def test_noise_of_half_precision_is_not_coarse():
    """It is drawn in float32: in bfloat16 there are but 128 numbers between 0.5 and 1."""
    opt = eqopt.Chain(eqopt.AddNoise(1.0, 0.0, key=0), eqopt.Scale(1.0))
    params = jnp.zeros(SIZE)
    grads = params.astype(jnp.bfloat16)
    new, _ = opt.step(grads, opt.init(params), params)
    assert len(np.unique(new)) > 0.9 * SIZE


def test_a_seed_is_its_key():
    of = lambda key: draws(eqopt.AddNoise(1.0, 0.0, key), 2, jnp.zeros(3))
    np.testing.assert_array_equal(of(7), of(jr.key(7)))
    np.testing.assert_array_equal(of(7), of(jr.PRNGKey(7)))
    other = jr.key(7, impl="rbg")
    np.testing.assert_array_equal(of(other), of(other))
    assert not np.isclose(of(7), of(other)).any()
    assert not np.isclose(of(7), of(8)).any()


# Per-example gradients

BATCH = {"w": jnp.array([[3.0, 4.0], [0.0, 0.0], [0.3, 0.0]]), "b": jnp.zeros(3)}
PARAMS = {"w": jnp.zeros(2), "b": jnp.zeros(())}


def test_clipped_mean_by_hand():
    opt = eqopt.DifferentiallyPrivateAggregate(1.0, 0.0, key=0)
    updates, _ = opt.update(BATCH, opt.init(PARAMS), PARAMS)
    np.testing.assert_allclose(updates["w"], np.array([0.6 + 0.3, 0.8]) / 3, 1e-6)
    assert updates["b"] == 0


@pytest.mark.parametrize("clip", [0.0, float("inf")])
def test_extreme_clips(clip):
    opt = eqopt.DifferentiallyPrivateAggregate(clip, 0.0, key=0)
    updates, _ = opt.update(BATCH, opt.init(PARAMS), PARAMS)
    total = np.zeros(2) if clip == 0 else np.array([3.3, 4.0])
    np.testing.assert_allclose(updates["w"], total / 3, 1e-6)


def test_the_sum_of_many_halves():
    """It is in float32: in their own precision, it would stop at 256."""
    batch = jnp.full((5000, 1), 0.5, jnp.bfloat16)
    total, clipped = eqopt.per_example_global_norm_clip(batch, 1.0)
    assert total.dtype == jnp.float32 and clipped == 0
    np.testing.assert_allclose(total, 2500, rtol=1e-6)


def oracle(leaves, clips):
    """In NumPy, for each leaf: the clipped sum, and the number of clipped examples."""
    result = []
    for x, clip in zip(leaves, clips, strict=True):
        norms = np.sqrt((np.abs(x) ** 2).reshape(len(x), -1).sum(1))
        factors = np.minimum(1, clip / norms)
        result.append((np.tensordot(factors, x, 1), (factors < 1).sum()))
    return result


@pytest.mark.parametrize("uniform", [True, False])
def test_clipping_by_layer(uniform):
    shapes = [(4, 3, 2), (4, 5), (4,)]
    leaves = [np.asarray(jr.normal(jr.key(i), s)) for i, s in enumerate(shapes)]
    sizes = [1, 1, 1] if uniform else [6, 5, 1]
    grads = {"a": leaves[0], "b": [leaves[1], None, leaves[2]]}
    grads = jax.tree.map(jnp.asarray, grads)
    total, clipped = eqopt.per_example_layer_norm_clip(grads, 1.5, uniform)
    assert jax.tree.structure(total) == jax.tree.structure(grads)
    clips = [1.5 * np.sqrt(size / sum(sizes)) for size in sizes]
    for (expected, count), mine, number in zip(
        oracle(leaves, clips),
        jax.tree.leaves(total),
        jax.tree.leaves(clipped),
        strict=True,
    ):
        np.testing.assert_allclose(mine, expected, 1e-5)
        assert number == count and number.dtype == jnp.int32


def test_clipping_complex_examples():
    batch = jr.normal(jr.key(0), (4, 3), jnp.complex64)
    total, clipped = eqopt.per_example_global_norm_clip(batch, 0.5)
    [(expected, count)] = oracle([np.asarray(batch)], [0.5])
    np.testing.assert_allclose(total, expected, 1e-5)
    assert clipped == count == 4


@pytest.mark.parametrize(
    ("w", "b", "message"),
    [
        ((3, 2), (), r"the array at `\['b'\]` has shape \(\), for"),
        ((2,), (2,), r"shape \(2,\), for parameters of shape \(2,\).*_vmap"),
        ((3, 2), (4,), r"`\['w'\]` has shape \(3, 2\), .* and `\['b'\]` has 4 ex"),
        ((0, 2), (0,), r"`\['b'\]` has shape \(0,\)"),
    ],
)
def test_wrong_batches(w, b, message):
    grads = {"w": jnp.ones(w), "b": jnp.ones(b)}
    opt = eqopt.DPSGD(0.1, 1.0, 1.0, key=0)
    with pytest.raises(ValueError, match=message):
        opt.update(grads, opt.init(PARAMS), PARAMS)


@pytest.mark.parametrize("layer", ["", "global_"])
def test_no_wrong_clip_in_functions(layer):
    clip = eqopt.per_example_global_norm_clip
    clip = eqopt.per_example_layer_norm_clip if layer else clip
    message = rf"_norm_clip: `{layer}l2_norm_clip` must be in \[0, inf\), but is nan"
    with pytest.raises(ValueError, match=message):
        clip(BATCH, float("nan"))


@pytest.mark.parametrize("norms", [[3.0, 0.0, np.inf], [np.nan, 1.0]])
def test_traced_clips_are_bounds_or_not_numbers(norms):
    """A negative clip must not turn gradients round, nor a NaN leave them as they are."""
    factors = jax.jit(clip_factors)
    norms = jnp.array(norms)
    np.testing.assert_array_equal(factors(norms, -1.0), factors(norms, 0.0))
    assert jnp.isnan(factors(norms, jnp.nan)).all()


@pytest.mark.slow
def test_no_copy_of_the_batch():
    """The temporary memory depends on the size of the parameters, not of the batch."""
    params = [jnp.zeros((250, 1000)) for _ in range(4)]
    batch = [jax.ShapeDtypeStruct((16, 250, 1000), jnp.float32) for _ in params]
    opt = eqopt.DPSGD(0.1, 1.0, 0.0, key=0, momentum=0.9)
    state = jax.eval_shape(opt.init, params)
    step = jax.jit(lambda p, s, g: opt.step(g, s, p), donate_argnums=(0, 1))
    memory = step.lower(params, state, batch).compile().memory_analysis()
    total = sum(x.nbytes for x in params)
    assert memory.temp_size_in_bytes < 4 * total


# Sums of clipped gradients


@pytest.mark.slow
def test_clipped_sums_are_as_gradients_of_examples():
    model = eqx.nn.MLP(2, 1, 3, 1, key=jr.key(0))
    x = jr.normal(jr.key(1), (6, 2))
    loss = lambda model, x: jnp.sum(model(x)) ** 2
    of_examples = eqx.filter_vmap(eqx.filter_grad(loss), in_axes=(None, 0))(model, x)
    total, _ = clipped_grad(loss, 0.1, keep_batch_dim=False)(model, x)
    arguments = {"batch_size": 8, "momentum": 0.9}
    one = eqopt.DPSGD(0.1, 0.1, 1.5, key=3, **arguments)
    other = eqopt.DPSGD(0.1, 0.1, 1.5, key=3, clipped=True, **arguments)
    first, _ = one.step(of_examples, one.init(model), model)
    second, _ = eqx.filter_jit(other.step)(total, other.init(model), model)
    leaves = (jax.tree.leaves(eqx.filter(m, eqx.is_array)) for m in (first, second))
    for a, b in zip(*leaves, strict=True):
        np.testing.assert_allclose(a, b, 1e-5, 1e-6)


def test_noise_is_added_to_clipped_sums_before_rounding():
    """Rounded noise, or a rounded sum, could reveal more than the sum."""
    opt = eqopt.DifferentiallyPrivateAggregate(
        1.0, 0.5, key=0, batch_size=3, clipped=True
    )
    sums = jr.normal(jr.key(1), (64,), jnp.bfloat16)
    found, _ = opt.update(sums, opt.init(sums))
    wide, _ = opt.update(sums.astype(jnp.float32), opt.init(sums))
    np.testing.assert_array_equal(found, wide.astype(jnp.bfloat16))


@pytest.mark.parametrize("clipped", [True, False])
def test_noise_is_for_the_expected_batch_size(clipped):
    """Not for the random number of examples that there happen to be."""
    opt = eqopt.DifferentiallyPrivateAggregate(0.5, 1.2, 0, 8, clipped)
    params = jnp.zeros(SIZE)
    grads = jnp.zeros(SIZE) if clipped else jnp.zeros((3, SIZE))
    mean, _ = opt.update(grads, opt.init(params), params)
    check_normal(np.asarray(mean), (1.2 * 0.5 / 8) ** 2)


@pytest.mark.parametrize(
    ("clipped", "batch_size", "grads", "message"),
    [
        (True, None, BATCH, r"DPSGD.*: `clipped=True` needs `batch_size`"),
        (True, 2, BATCH, r"shapes do not fit at `\['"),
        (False, 2, PARAMS, "pass `clipped=True`"),
    ],
    ids=["no size", "examples instead of a sum", "a sum instead of examples"],
)
def test_sums_and_examples_are_not_mixed_up(clipped, batch_size, grads, message):
    with pytest.raises(ValueError, match=message):
        opt = eqopt.DPSGD(0.1, 1.0, 1.0, key=0, batch_size=batch_size, clipped=clipped)
        opt.update(grads, opt.init(PARAMS), PARAMS)
