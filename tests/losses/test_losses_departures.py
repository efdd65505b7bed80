"""Differences from Optax that "Coming from Optax" describes, asserted on both sides."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from eqopt import losses


pytestmark = pytest.mark.usefixtures("standard_promotion")


def f32(*values):
    return jnp.array(values, jnp.float32)


def test_cosine_of_large_vectors():
    x = f32(1e30, 0)
    assert optax.cosine_similarity(x, x) == 0
    assert losses.cosine_similarity(x, x) == 1


def test_labels_out_of_range():
    x = f32(1, 2, 4)
    theirs = optax.softmax_cross_entropy_with_integer_labels
    assert theirs(x, jnp.array(-1)) == theirs(x, jnp.array(2))
    assert jnp.isnan(losses.softmax_cross_entropy_with_integer_labels(x, -1))
    assert optax.losses.multiclass_perceptron_loss(x, jnp.array(3)) == 4
    assert jnp.isnan(losses.multiclass_perceptron_loss(x, 3))


def test_odd_degrees():
    x = [f32(0, 0), f32(1, -1), f32(5, 5)]
    same = jnp.abs(x[1]), jnp.abs(x[2])
    expected = optax.losses.triplet_margin_loss(x[0], -same[0], -same[1], norm_degree=1)
    found = losses.triplet_margin_loss(*x, norm_degree=1)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert optax.losses.triplet_margin_loss(*x, norm_degree=1) != expected


def test_masked_labels_get_no_share():
    y, where = f32(1, 0, 0), np.array([True, True, False])
    assert optax.smooth_labels(y, 0.2, where=where)[2] == pytest.approx(0.1)
    assert losses.smooth_labels(y, 0.2, where=where)[2] == 0


def test_arguments_of_the_maximum():
    soft = lambda s, t, *, shift=0.0: t * jax.nn.logsumexp(s / t) + shift
    args = jnp.ones((2, 3)), jnp.zeros((2, 3)), jnp.float32(2)
    with pytest.raises(TypeError):
        optax.losses.make_fenchel_young_loss(soft)(*args)
    found = losses.make_fenchel_young_loss(soft)(*args, shift=1.0)
    np.testing.assert_allclose(found, 2 + 2 * np.log(3) * np.ones(2), rtol=1e-6)


def test_dtype_is_that_of_the_logits():
    x, y = jnp.ones((2, 3), jnp.bfloat16), jnp.ones((2, 3)) / 3
    assert optax.softmax_cross_entropy(x, y).dtype == jnp.float32
    assert losses.softmax_cross_entropy(x, y).dtype == jnp.bfloat16
    assert losses.softmax_cross_entropy(x.astype(jnp.float32), y).dtype == jnp.float32


@pytest.mark.slow
def test_absent_class_does_not_outweigh_the_others():
    """In Optax it has nearly all of the weight."""
    x = jax.random.normal(jax.random.key(0), (2, 8, 3))
    classes = np.zeros((2, 8), int)
    classes[0, 0] = 1  # and 2 is nowhere
    t = np.eye(3, dtype=np.float32)[classes]
    each = jnp.mean(losses.dice_loss(x, t, reduction="none"), 0)
    weights = np.array([1 / 15**2, 1, 1])
    expected = jnp.sum(each * weights) / weights.sum()
    found = losses.multiclass_generalized_dice_loss(x, t)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    theirs = optax.losses.multiclass_generalized_dice_loss(x, jnp.asarray(t))
    np.testing.assert_allclose(theirs, each[2], rtol=1e-5)
    assert abs(theirs - expected) > 1e-3


def test_dice_of_probabilities_under_jit():
    """Optax raises an error, because it compares values, and expects a sum of 1."""
    p = jnp.array([[0.9, 0.2, 0.4]])
    t = jnp.array([[1.0, 0.0, 1.0]])
    found = jax.jit(lambda p: losses.binary_dice_loss(p, t, apply_sigmoid=False))(p)
    np.testing.assert_allclose(found, [1 - (2 * 1.3 + 2) / (1.5 + 2 + 2)], rtol=1e-6)
    with pytest.raises(ValueError):
        optax.losses.binary_dice_loss(p, t, apply_sigmoid=False)
