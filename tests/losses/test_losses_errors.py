"""Each message names the argument, what it is, what it should be, and the likely fix."""

import jax
import numpy as np
import pytest

from eqopt import losses


X = np.zeros((4, 3), np.float32)
COLUMN = np.zeros((4, 1), np.float32)
ROW = np.zeros(4, np.float32)
IDS = np.zeros(4, np.int32)
FRAMES = np.zeros((2, 5, 3), np.float32)
PADS = np.zeros((2, 5))
LABELS = np.ones((2, 2), np.int32)


def ctc(logits=FRAMES, pads=PADS, labels=LABELS, label_pads=None, **options):
    label_pads = np.zeros(labels.shape) if label_pads is None else label_pads
    return losses.ctc_loss(logits, pads, labels, label_pads, **options)


TWO = [
    *("squared_error", "l2_loss", "huber_loss", "log_cosh", "cosine_similarity"),
    *("cosine_distance", "sigmoid_binary_cross_entropy", "sigmoid_focal_loss"),
    *("hinge_loss", "perceptron_loss", "sparsemax_loss", "softmax_cross_entropy"),
    *("safe_softmax_cross_entropy", "poly_loss_cross_entropy", "kl_divergence"),
    *("kl_divergence_with_log_targets", "generalized_kl_divergence", "dice_loss"),
    *("multiclass_generalized_dice_loss", "binary_dice_loss", "ranking_softmax_loss"),
]


@pytest.mark.parametrize("name", TWO)
def test_nothing_is_broadcast(name):
    message = r"`\w+` must have the shape of `\w+`, \(4, 3\), but has shape \(4, 1\)\."
    with pytest.raises(ValueError, match=f"{name}: {message} Nothing is broadcast"):
        getattr(losses, name)(X, COLUMN)


CASES = {
    "labels of another shape": (
        lambda: losses.softmax_cross_entropy_with_integer_labels(X, X.astype(int)),
        r"`labels` must have the shape .*, \(4,\), but has shape \(4, 3\).*argmax",
    ),
    "integer labels": (
        lambda: losses.softmax_cross_entropy(X, IDS),
        r"`labels` must have the shape .* `jax.nn.one_hot\(labels, 3\)`",
    ),
    "mask": (
        lambda: losses.softmax_cross_entropy(X, X, where=np.ones(3, bool)),
        r"`where` must have shape \(4, 3\).*or \(4,\), but has shape \(3,\)",
    ),
    "number with axes": (
        lambda: losses.huber_loss(X, delta=ROW),
        r"`delta` must be a real number or a 0-d array, but is .* shape \(4,\)",
    ),
    "embeddings": (
        lambda: losses.ntxent(X, IDS[:3]),
        r"`embeddings` has \[4, 3\], `labels` has \[3\]",
    ),
    "axis of the classes": (
        lambda: losses.dice_loss(FRAMES, FRAMES, axis=-1),
        r"`axis` must not contain the last axis",
    ),
    "dice without a batch": (
        lambda: losses.dice_loss(ROW, ROW),
        r"`predictions` must have axes for the batch .* but has shape \(4,\)",
    ),
    "no maximum": (
        lambda: losses.make_fenchel_young_loss(jax.nn.softmax)(X, X),
        r"`max_fun` must return .* `logsumexp`, .* an array of shape \(3,\)",
    ),
    "one sequence": (lambda: ctc(FRAMES[0], PADS[0]), "'batch frames classes'"),
    "blank": (lambda: ctc(blank_id=3), r"`blank_id` must be in \[0, 3\).* but is 3"),
}

# Numbers just outside the range of each argument.
BOUNDS = {
    "sigmoid_focal_loss": ({"alpha": 1.5}, {"gamma": -1}),
    "smooth_labels": ({"alpha": 2.0},),
    "cosine_similarity": ({"eps": -1.0},),
    "poly_loss_cross_entropy": ({"epsilon": np.nan},),
    "ntxent": ({"temperature": 0.0},),
    "triplet_margin_loss": ({"norm_degree": 0.5}, {"margin": -1.0}, {"eps": -1.0}),
    "dice_loss": ({"smooth": -1.0}, {"alpha": -1.0}, {"beta": -1.0}),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_bounds(name):
    arrays = {
        "smooth_labels": (X,),
        "ntxent": (X, IDS),
        "triplet_margin_loss": (X,) * 3,
    }
    for options in BOUNDS[name]:
        [argument] = options
        with pytest.raises(ValueError, match=rf"{name}: `{argument}` must be in"):
            getattr(losses, name)(*arrays.get(name, (X, X)), **options)
    with pytest.raises(ValueError, match=r"`log_epsilon` must be in \(-inf, 0\)"):
        ctc(log_epsilon=0.0)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.costly
def test_messages(case):
    call, message = CASES[case]
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: losses.l2_loss(np.arange(3)),
        lambda: losses.softmax_cross_entropy_with_integer_labels(X, ROW),
    ],
    ids=["integers", "floating labels"],
)
def test_dtypes(call):
    with pytest.raises(TypeError, match=r"labels|predictions"):
        call()
