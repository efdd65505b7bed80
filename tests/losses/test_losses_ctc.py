"""CTC at its corners, and the probabilities that Optax has. The laws have its values."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from eqopt import losses


pytestmark = pytest.mark.slow


def paddings(lengths, size):
    return (np.arange(size) >= np.asarray(lengths)[:, None]).astype(np.float32)


def problem(seed, frames=(12, 7, 10, 12), labels=(4, 2, 0, 3), classes=6, blank_id=0):
    """Random logits and labels; the first two labels are equal."""
    rng = np.random.default_rng(seed)
    T, N = max(frames), max(labels)
    logits = rng.normal(size=(len(frames), T, classes)).astype(np.float32) * 2
    y = rng.integers(classes - 1, size=(len(frames), N))
    y = y + (y >= blank_id)
    y[:, 1] = y[:, 0]
    return logits, paddings(frames, T), y, paddings(labels, N)


@functools.partial(jax.jit, static_argnames="blank_id")
def value_and_grad(*example, blank_id=0):
    loss = lambda x: losses.ctc_loss(x, *example[1:], blank_id=blank_id)
    value, vjp = jax.vjp(loss, example[0])
    return value, vjp(jnp.ones_like(value))[0]


@pytest.mark.parametrize("blank_id", [0, 3])
def test_forward_probabilities_are_those_of_optax(blank_id, standard_promotion):
    example = problem(2, blank_id=blank_id)
    ours = losses.ctc_loss_with_forward_probs(*example, blank_id=blank_id)
    theirs = optax.ctc_loss_with_forward_probs(
        *map(jnp.asarray, example), blank_id=blank_id
    )
    for a, b in zip(ours, theirs, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        is_possible = b > -1e4
        np.testing.assert_array_equal(a > -1e4, is_possible)
        a, b = jnp.where(is_possible, a, 0), jnp.where(is_possible, b, 0)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-4)


def test_forward_probabilities_have_derivatives():
    example = problem(0, (4, 3), (2, 1), classes=3)
    rest = example[1:]

    def fn(x):
        _, blank, label = losses.ctc_loss_with_forward_probs(x, *rest)
        return jnp.sum(jnp.exp(blank)) + jnp.sum(jnp.exp(label) * label.shape[0])

    x, direction = jnp.asarray(example[0]), jnp.cos(jnp.asarray(example[0]))
    _, slope = jax.jit(lambda x: jax.jvp(fn, (x,), (direction,)))(x)
    step = 1e-2
    fn = jax.jit(fn)
    difference = (fn(x + step * direction) - fn(x - step * direction)) / (2 * step)
    np.testing.assert_allclose(slope, difference, rtol=2e-3)
    np.testing.assert_allclose(jnp.vdot(jax.grad(fn)(x), direction), slope, rtol=1e-4)


def test_without_labels_all_is_blank():
    logits, logit_paddings, labels, _ = problem(0)
    none = np.ones_like(labels)
    loss, grad = value_and_grad(logits, logit_paddings, labels, none)
    blank = jax.nn.log_softmax(logits)[..., 0]
    np.testing.assert_allclose(
        loss, -jnp.sum(blank * (1 - logit_paddings), 1), rtol=1e-5
    )
    assert jnp.all(jnp.isfinite(grad))
    # The same where the array of labels has no column.
    empty = losses.ctc_loss(logits, logit_paddings, labels[:, :0], none[:, :0])
    np.testing.assert_allclose(empty, loss, rtol=1e-6)


def test_without_frames():
    logits, logit_paddings, labels, label_paddings = problem(0)
    loss, grad = value_and_grad(
        logits, np.ones_like(logit_paddings), labels, label_paddings
    )
    assert loss[2] == 0  # it has no labels
    assert jnp.all(loss[np.array([0, 1, 3])] >= 0.99e5)
    np.testing.assert_array_equal(grad, 0)
    nothing = losses.ctc_loss(
        logits[:, :0], logit_paddings[:, :0], labels, label_paddings
    )
    np.testing.assert_array_equal(nothing, loss)
    _, blank, label = losses.ctc_loss_with_forward_probs(
        logits[:, :0], logit_paddings[:, :0], labels, label_paddings
    )
    assert blank.shape == (0, 4, 5) and label.shape == (0, 4, 4)


def test_too_few_frames():
    """Two equal labels need three frames."""
    logits, *_ = problem(0, (2,), (2,), classes=3)
    loss, grad = value_and_grad(
        logits, np.zeros((1, 2)), np.array([[1, 1]]), np.zeros((1, 2))
    )
    assert 0.9e5 < loss[0] < 1.1e5 and jnp.all(jnp.isfinite(grad))
    loss, grad = value_and_grad(
        logits, np.zeros((1, 2)), np.array([[1, 2]]), np.zeros((1, 2))
    )
    log_p = jax.nn.log_softmax(logits[0])
    np.testing.assert_allclose(loss[0], -log_p[0, 1] - log_p[1, 2], rtol=1e-5)


def test_padded_frames_may_be_anywhere_and_anything():
    logits, logit_paddings, labels, label_paddings = problem(0, (6,), (2,))
    expected, slope = value_and_grad(logits, logit_paddings, labels, label_paddings)
    there = np.array([0, 2, 3, 5, 6, 8])
    spread = np.full((1, 9, 6), 7.0, np.float32)
    spread[:, there] = logits
    pads = np.ones((1, 9), bool)
    pads[:, there] = False
    loss, grad = value_and_grad(spread, pads, labels, label_paddings.astype(int))
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    np.testing.assert_allclose(grad[:, there], slope, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(grad[pads], 0)


@pytest.mark.parametrize("label", [-1, 6, 0])
def test_wrong_labels(label):
    """Out of range, or the blank: NaN without a gradient, unless they are padded."""
    logits, logit_paddings, labels, label_paddings = problem(0)
    expected, _ = value_and_grad(logits, logit_paddings, labels, label_paddings)
    padded = np.where(label_paddings == 1, label, labels)
    found, _ = value_and_grad(logits, logit_paddings, padded, label_paddings)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    labels[0, 2] = label
    found, grad = value_and_grad(logits, logit_paddings, labels, label_paddings)
    np.testing.assert_array_equal(np.isnan(found), [True, False, False, False])
    np.testing.assert_array_equal(grad[0], 0)
    assert jnp.all(jnp.isfinite(grad))


def test_impossible_classes():
    logits, logit_paddings, labels, label_paddings = problem(0, (12, 12), (3, 2))
    logits[0, :, 0] = -np.inf  # never blank, but between equal labels there must be one
    logits[1, 3, 5] = -np.inf
    loss, grad = value_and_grad(logits, logit_paddings, labels, label_paddings)
    assert loss[0] > 1e4 and loss[1] < 1e3
    assert jnp.all(jnp.isfinite(grad))


def test_no_memory_for_one_hot_labels():
    """Optax makes an array of shape (batch, labels, classes)."""
    B, T, N, K = 2, 8, 50, 5000
    shapes = [
        jax.ShapeDtypeStruct(shape, dtype)
        for shape, dtype in [
            ((B, T, K), jnp.float32),
            ((B, T), jnp.float32),
            ((B, N), jnp.int32),
            ((B, N), jnp.float32),
        ]
    ]
    grad = jax.jit(jax.grad(lambda *x: jnp.sum(losses.ctc_loss(*x))))
    memory = grad.lower(*shapes).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 4 * B * N * K
