"""Labels of any dtype, and derivatives by labels, also by hard ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqopt import losses

from ..interpreter import interpreted


CLASSES = 300  # more than labels of 8 bits can count
SCORES = np.random.default_rng(0).normal(size=(4, CLASSES)).astype(np.float32)


def ctc(blank_id):
    """With two frames, which are for one label and a blank."""

    def loss(x, k):
        logits = jnp.stack([x, x[:, ::-1]], 1)
        pads = np.zeros((4, 2)), np.zeros((4, 1))
        return losses.ctc_loss(logits, pads[0], k[:, None], pads[1], blank_id=blank_id)

    return loss


MANY_CLASSES = {
    "cross entropy": losses.softmax_cross_entropy_with_integer_labels,
    "hinge": losses.multiclass_hinge_loss,
    "perceptron": losses.multiclass_perceptron_loss,
    "sparsemax": losses.multiclass_sparsemax_loss,
    "ctc": ctc(0),
    "ctc, large blank": ctc(256),
    "ntxent": lambda x, k: losses.ntxent(x, k % 2),
}


@pytest.mark.parametrize("name", MANY_CLASSES)
@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint32])
@pytest.mark.costly
def test_narrow_labels(name, dtype):
    """They count fewer classes than there are, and 256 is not taken for 0."""
    labels = np.array([3, 1, 7, np.iinfo(dtype).max & 255])
    if name == "ctc, large blank":
        labels[0] = 0
    with_gradient = lambda x, k: jax.value_and_grad(
        lambda x: jnp.sum(MANY_CLASSES[name](x, k))
    )(x)
    call = interpreted(with_gradient)
    value, grad = call(SCORES, jnp.asarray(labels, dtype))
    expected, slope = call(SCORES, jnp.asarray(labels, np.int32))
    assert np.isfinite(value)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    np.testing.assert_allclose(grad, slope, rtol=1e-5, atol=1e-7)


HARD = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
BY_LABELS = {
    "BCE": losses.sigmoid_binary_cross_entropy,
    **{
        f"focal, {gamma}": (
            lambda x, y, gamma=gamma: losses.sigmoid_focal_loss(x, y, gamma=gamma)
        )
        for gamma in (0.0, 0.5, 2.0)
    },
    "focal, weighted": lambda x, y: losses.sigmoid_focal_loss(x, y, alpha=0.3),
    "CE": losses.softmax_cross_entropy,
    "poly": losses.poly_loss_cross_entropy,
    "ranking": losses.ranking_softmax_loss,
    "Fenchel-Young": losses.make_fenchel_young_loss(jax.nn.logsumexp),
    "dice": losses.dice_loss,
    "smoothing": lambda x, y: losses.smooth_labels(y, 0.2),
}


@pytest.mark.parametrize("name", BY_LABELS)
@pytest.mark.costly
def test_derivatives_by_hard_labels(name, x64):
    """They are limits of differences from the side of soft labels."""
    with x64():
        x = 2 * jax.random.normal(jax.random.key(0), HARD.shape, jnp.float64)
        total = lambda y: jnp.sum(BY_LABELS[name](x, y))
        sizes = np.array([[1.0, 0.5, 0.3], [0.7, 0.2, 1.0]])
        inward = jnp.asarray((1 - 2 * HARD) * sizes)

        @jax.jit
        def slopes(y):
            steps = (total(y + s * inward) for s in (0, 1e-6, 2e-6))
            start, near, far = steps
            difference = (4 * near - far - 3 * start) / 2e-6
            return jnp.vdot(jax.grad(total)(y), inward), difference

        slope, difference = slopes(jnp.asarray(HARD))
        np.testing.assert_allclose(slope, difference, rtol=1e-5, atol=1e-7)
