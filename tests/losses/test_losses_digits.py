"""Sure predictions: no loss is below its bound, and small losses have their digits.

A loss that is computed as a difference of larger numbers has none where a model is
right: it may even be negative, and its logarithm NaN. Each subject has rows of
confident, saturated and huge arguments, and a formula for float64 without cancellation.
"""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import logsumexp

from eqopt import losses


EPS = float(np.finfo(np.float32).eps)  # all losses are computed in float32 here
DTYPES = [jnp.float32, jnp.bfloat16, jnp.float16]


def nothing(*args, **kwargs):
    return 0.0


@dataclasses.dataclass(frozen=True)
class Subject:
    """A call of a loss. The floats are functions of the largest number to use."""

    name: str
    floats: Callable[[float], dict[str, Any]]
    formula: Callable[..., Any]
    rest: dict[str, Any] = dataclasses.field(default_factory=dict)
    low: float = 0.0
    high: float = np.inf
    rtol: float = 1e-5
    # The change of the result due to rounded arguments, in units of their dtype's eps.
    # A loss cannot be more exact.
    noise: Callable[..., Any] = nothing
    # Values above are not exact, as the docstring says.
    exact_below: float = np.inf
    of: Callable[[Any], Any] = lambda result: result
    label: str = ""

    def __call__(self, **floats):
        fn = getattr(losses, self.name)
        if self.name == "make_fenchel_young_loss":
            fn = fn(logsumexp)
        return self.of(fn(**floats, **self.rest))


# Formulas. Their arguments are NumPy arrays of float64.


def softplus(x):
    return np.logaddexp(0, x)


def log_softmax(x):
    """From the other classes, so that the logarithm of a number near 1 is exact."""
    classes = x.shape[-1]
    odds = [
        np.logaddexp.reduce(np.delete(x, i, -1) - x[..., i : i + 1], -1)
        for i in range(classes)
    ]
    return -softplus(np.stack(odds, -1))


def excess(x):
    series = x**2 / 2 - x**3 / 6 + x**4 / 24 - x**5 / 120 + x**6 / 720
    with np.errstate(over="ignore"):
        return np.where(np.abs(x) < 1e-2, series, x + np.expm1(-x))


def huber(predictions):
    e = np.abs(predictions)
    return np.where(e < 1, e**2 / 2, e - 0.5)


def log_cosh(predictions):
    e = np.abs(predictions)
    small = np.log1p(2 * np.sinh(np.minimum(e, 1) / 2) ** 2)
    return np.where(e < 1, small, softplus(-2 * e) + e - np.log(2))


def binary(logits, labels):
    return softplus(np.where(labels == 1, -logits, logits))


def hinge(predictor_outputs, targets):
    return np.maximum(1 - targets * predictor_outputs, 0)


def perceptron(predictor_outputs, targets):
    return np.maximum(-targets * predictor_outputs, 0)


def binary_sparsemax(logits, labels):
    scores = np.stack([0 * logits, logits], -1)
    return sparsemax(scores, np.full(len(logits), labels))


def cross_entropy(logits, labels):
    return -np.sum(np.where(labels == 0, 0, labels * log_softmax(logits)), -1)


def of_integers(logits, labels):
    return cross_entropy(logits, np.eye(4)[labels])


def ranking(logits, labels, reduce_fn):
    return cross_entropy(logits, labels)


def fenchel_young(scores, targets):
    return cross_entropy(scores, targets)


def rounding_of_maxima(eps, scores):
    """It cannot know more than `max_fun`, which returns a large number."""
    return 2 * EPS * np.max(np.abs(scores), -1)


def poly(logits, labels, epsilon):
    log_p = log_softmax(logits)
    terms = excess(-log_p) - (1 + epsilon) * np.expm1(log_p)
    return np.sum(np.where(labels == 0, 0, labels * terms), -1)


def focal(logits, labels, gamma=2.0):
    x = np.where(labels == 1, logits, -logits)
    return np.exp(-gamma * softplus(x)) * softplus(-x)


def bregman(p, q, log_p, log_q):
    with np.errstate(invalid="ignore", over="ignore"):
        d = log_q - log_p
        near = q * excess(np.where(np.abs(d) < 1, d, 0))
        return np.sum(
            np.where(q == 0, p, np.where(np.abs(d) < 1, near, q * d - q + p)), -1
        )


def generalized(log_predictions, targets):
    with np.errstate(divide="ignore"):
        log_q = np.log(targets)
    return bregman(np.exp(log_predictions), targets, log_predictions, log_q)


def with_log_targets(log_predictions, log_targets):
    p, q = np.exp(log_predictions), np.exp(log_targets)
    return bregman(p, q, log_predictions, log_targets)


def rounding_of_logs(eps, log_predictions, targets=None, log_targets=None):
    """The effect of rounded logarithms, which is small if p and q are close."""
    with np.errstate(divide="ignore", invalid="ignore"):
        q = np.exp(log_targets) if targets is None else targets
        log_q = np.log(targets) if log_targets is None else log_targets
        p, size = np.exp(log_predictions), 1 + np.abs(log_predictions)
        log_q = np.where(q == 0, 0, log_q)
        first = np.abs(q - p) * (size + np.abs(log_q)) * EPS
        second = (q + p) * (size * EPS) ** 2
        # A narrow dtype may round away that both have the same sum.
        sums = 2 * eps * (q + p * size) if eps > EPS else 0
    return np.sum(4 * first + 10 * second + sums, -1)


def rounding_of_arrays(eps, log_predictions, targets):
    return rounding_of_logs(EPS, log_predictions, targets)


def unit(x):
    x = x / np.max(np.abs(x), -1, keepdims=True)
    return x / np.sqrt(np.sum(x * x, -1, keepdims=True))


def cosine(predictions, targets):
    return np.sum(unit(predictions) * unit(targets), -1)


def rounding_of_cosine(eps, **vectors):
    return 4 * EPS


def distance(predictions, targets):
    return np.sum((unit(predictions) - unit(targets)) ** 2, -1) / 2


def rounding_of_distance(eps, **vectors):
    return 4 * EPS * np.sqrt(distance(**vectors)) + EPS**2


def ntxent(embeddings, labels, temperature):
    z = unit(embeddings)
    s = z @ z.T / temperature
    same = labels[:, None] == labels
    terms = [
        softplus(np.logaddexp.reduce(s[i, ~same[i]] - s[i, j]))
        for i, j in itertools.permutations(range(len(z)), 2)
        if same[i, j]
    ]
    return np.mean(terms)


def triplet(anchors, positives, negatives, **rest):
    near, far = (_norm(anchors - x, **rest) for x in (positives, negatives))
    return np.maximum(near - far + 1, 0).astype(float)


def _norm(x, norm_degree=2, eps=1e-6):
    x = np.abs(x).astype(np.longdouble)
    return (np.sum(x**norm_degree, -1) + eps) ** (1 / np.longdouble(norm_degree))


def rounding_of_distances(eps, anchors, **others):
    return 4 * EPS * sum(_norm(anchors - x) for x in others.values()).astype(float)


def sparsemax(scores, labels):
    x = scores.astype(np.longdouble)
    x = x - np.max(x, -1, keepdims=True)
    best = -np.sort(-x, -1)
    count = np.arange(1, x.shape[-1] + 1)
    number = np.sum(best * count > np.cumsum(best, -1) - 1, -1, keepdims=True)
    in_sum = np.where(count <= number, best, 0)
    p = np.maximum(x - (np.sum(in_sum, -1, keepdims=True) - 1) / number, 0)
    own = np.take_along_axis(x, labels[:, None], -1)
    ahead = np.sum(np.where(p > 0, p * (x - own), 0), -1)
    return (ahead + (1 - np.sum(p * p, -1)) / 2).astype(float)


def multiclass_hinge(scores, labels):
    own = np.take_along_axis(scores, labels[:, None], -1)
    return np.max(scores - own + 1 - np.eye(scores.shape[-1])[labels], -1)


def multiclass_perceptron(scores, labels):
    own = np.take_along_axis(scores, labels[:, None], -1)
    return np.max(scores - own, -1)


def rounding_of_pixels(eps, predictions):
    return EPS  # of 1 - p, for each pixel


def dice_of(p, q, t, axis):
    right, wrong = np.sum(p * t, axis), np.sum(p * (1 - t) + q * t, axis) / 2
    return wrong / (right + wrong + 1)


def dice(predictions, targets, reduction="none"):
    log_p = log_softmax(predictions)
    return dice_of(np.exp(log_p), -np.expm1(log_p), targets, 1)


def generalized_dice(predictions, targets):
    weights = 1 / np.sum(targets, (0, 1)) ** 2
    weights = weights / np.sum(weights) * len(weights)
    return np.mean(dice(predictions, targets) * weights)


def binary_dice(predictions, targets):
    p, q = (np.exp(-softplus(x)) for x in (-predictions, predictions))
    return dice_of(p, q, targets, 1)


def ctc(logits, logit_paddings, labels, label_paddings):
    """From the probabilities of all sequences of classes, the wrong ones if few."""
    found = []
    for x, pad, y, no_label in zip(
        log_softmax(logits), logit_paddings, labels, label_paddings, strict=True
    ):
        x, y = x[pad == 0], list(y[no_label == 0])
        wrong, right = [-np.inf], [-np.inf]
        for path in itertools.product(range(x.shape[1]), repeat=len(x)):
            runs = [k for k, _ in itertools.groupby(path)]
            log_p = np.sum(x[np.arange(len(x)), list(path)])
            (right if [k for k in runs if k] == y else wrong).append(log_p)
        wrong = np.exp(np.logaddexp.reduce(wrong))
        right = np.logaddexp.reduce(right)
        found.append(-np.log1p(-wrong) if wrong < 0.5 else -right)
    return np.array(found)


# Arguments.

GAPS = [0.5, 8.0, 17.0, 40.0, 80.0, 1e3, 3e4]
LABELS = np.tile([2, 0], len(GAPS) + 1)  # right ones and wrong ones
HOT = np.eye(4)[LABELS]
OF_CLASSES = {"labels": LABELS}
MINUS_ONE = {"labels": HOT, "epsilon": -1.0}


def sure(limit, axis=None):
    """Logits of which the third has a lead, twice, and huge ones."""
    rows = [np.array([0, -0.25, gap, 0.125]) for gap in [*GAPS, limit]]
    return np.repeat(rows, 2, 0)


def scores(limit):
    """Margins near 1, ties, several classes near the best, and large common terms."""
    big = min(2.0**24, limit)
    rows = [[0, 0.0625, 1 + margin, -3] for margin in (-0.5, -2e-3, -6e-4, 0.25)]
    rows += [[0.5, 0.75, 1, 0.25], [1, 1, 1, 1], [-limit, 0, limit / 4, 0]]
    rows += [[0, big, big, 0], [0, 0, big, 0], [big, big, big, big]]
    return np.repeat(np.array(rows, float), 2, 0)


SCORE_LABELS = {"labels": np.tile([2, 0], 10)}


def score_rows(limit):
    return {"scores": scores(limit)}


def logits(limit):
    return {"logits": sure(limit)}


def errors(limit):
    return {"predictions": np.array([*ERRORS, -limit])}


ONE = np.array([-1, 1 - 1 / 256, 1 - 1 / 16, 1, 0.5, *GAPS])
BOTH = np.concatenate([ONE, -ONE])
SIDES = {"labels": np.repeat([1, 0], [len(ONE), len(ONE) + 1])}


def both_sides(limit):
    return {"logits": np.array([*BOTH, limit])}


def one_side(name):
    return lambda limit: {name: np.array([*BOTH, -limit])}


def pixels(limit):
    x = sure(limit)[::2].reshape(-1, 2, 4)
    return np.stack([x, x[..., [2, 1, 0, 3]]], 1).reshape(len(x), 4, 4)


PIXELS = np.eye(4)[np.tile([2, 2, 0, 0], ((len(GAPS) + 1) // 2, 1))]
ERRORS = np.array([0, 1e-4, 1e-2, 0.25, 0.999, 1.001, 17, 300, 3e4])


def distributions():
    """Equal ones, close ones, different ones, sure ones and opposite ones."""
    random = np.random.default_rng(0)
    x = random.normal(size=(9, 6)) * 2
    move = random.normal(size=(9, 6))
    move *= np.array([0, 0, 1e-4, 1e-2, 0.3, 2, 0, 0, 0])[:, None]
    y = x + move
    x[6:, 0] += 30
    y[6:] = x[6:]
    y[7, 0] += 1
    y[8, 0] -= 60
    return log_softmax(x), log_softmax(y)


LOG_P, LOG_Q = distributions()
POSITIVE = np.array([1e-3, 1, 30, 1e3, 3e4, 1, 1, 1, 1])[:, None]


def vectors(limit):
    """Equal, close, parallel, orthogonal, opposite, huge and tiny vectors."""
    x = np.random.default_rng(1).normal(size=(9, 5))
    y = x.copy()
    y[1, 0] += 1e-2
    y[2] += 0.1
    y[3] *= 3
    y[4] = np.roll(x[4], 1)
    y[5] *= -1
    x[6:] *= limit / 8
    y[6] = x[6]
    y[7] = x[7] / 3
    y[8] = x[8] + limit / 64
    return {"predictions": x, "targets": y}


def triplets(limit):
    random = np.random.default_rng(2)
    x = random.normal(size=(3, 5, 4))
    x[:, 1] *= limit / 8
    x[1, 2] = x[0, 2]  # no distance
    x[:2, 3] *= 1e-3
    x[:, 4] *= np.array([1, 1, limit / 8])[:, None]
    return dict(zip(("anchors", "positives", "negatives"), x, strict=True))


def groups(limit):
    z = np.array([[1, 0, 0], [1, 1 / 64, 0], [-1, 0, 1 / 16], [-1, 1 / 64, 0]])
    return {"embeddings": z * np.array([[1], [8], [limit / 8], [1]])}


CTC_LABELS = np.tile([[1, 2], [2, 2], [1, 0], [0, 0]], (len(GAPS), 1))
CTC = {
    "logit_paddings": np.tile(
        [[0] * 4, [0] * 4, [0, 1, 0, 0], [0] * 4], (len(GAPS), 1)
    ),
    "labels": CTC_LABELS,
    "label_paddings": (CTC_LABELS == 0).astype(int),
}


def frames(limit):
    """Sure of 0 1 2 2, of 2 0 2 0, of 1 1 1 and of blanks; all classes differ."""
    paths = [[0, 1, 2, 2], [2, 0, 2, 0], [1, 0, 1, 1], [0, 0, 0, 0]]
    x = np.random.default_rng(3).normal(size=(len(GAPS), 4, 4, 3))
    x = x.astype(jnp.float16).astype(float)
    x = x + np.array(GAPS).reshape(-1, 1, 1, 1) * np.eye(3)[paths]
    return {"logits": x.reshape(-1, 4, 3)}


SUBJECTS = [
    Subject("squared_error", errors, lambda predictions: predictions**2),
    Subject("l2_loss", errors, lambda predictions: predictions**2 / 2),
    Subject("huber_loss", errors, huber),
    Subject("log_cosh", errors, log_cosh),
    Subject(
        "cosine_similarity", vectors, cosine, low=-1, high=1, noise=rounding_of_cosine
    ),
    Subject("cosine_distance", vectors, distance, high=2, noise=rounding_of_distance),
    Subject("sigmoid_binary_cross_entropy", both_sides, binary, SIDES),
    Subject("sigmoid_focal_loss", both_sides, focal, SIDES),
    Subject("hinge_loss", one_side("predictor_outputs"), hinge, {"targets": 1}),
    Subject(
        "perceptron_loss", one_side("predictor_outputs"), perceptron, {"targets": 1}
    ),
    Subject("sparsemax_loss", one_side("logits"), binary_sparsemax, {"labels": 1}),
    Subject("softmax_cross_entropy", logits, cross_entropy, {"labels": HOT}),
    Subject("safe_softmax_cross_entropy", logits, cross_entropy, {"labels": HOT}),
    Subject(
        "softmax_cross_entropy_with_integer_labels", logits, of_integers, OF_CLASSES
    ),
    Subject("poly_loss_cross_entropy", logits, poly, {"labels": HOT, "epsilon": 2.0}),
    Subject("poly_loss_cross_entropy", logits, poly, MINUS_ONE, label="-1"),
    Subject(
        "ranking_softmax_loss", logits, ranking, {"labels": HOT, "reduce_fn": None}
    ),
    Subject(
        "make_fenchel_young_loss",
        lambda limit: {"scores": sure(limit)},
        fenchel_young,
        {"targets": HOT},
        noise=rounding_of_maxima,
    ),
    Subject(
        "kl_divergence",
        lambda limit: {"log_predictions": LOG_P, "targets": np.exp(LOG_Q)},
        generalized,
        noise=rounding_of_logs,
    ),
    Subject(
        "kl_divergence_with_log_targets",
        lambda limit: {"log_predictions": LOG_P, "log_targets": LOG_Q},
        with_log_targets,
        noise=rounding_of_logs,
    ),
    Subject(
        "generalized_kl_divergence",
        lambda limit: {
            "log_predictions": LOG_P + np.log(POSITIVE),
            "targets": np.exp(LOG_Q) * POSITIVE,
        },
        generalized,
        noise=rounding_of_arrays,
    ),
    Subject("multiclass_hinge_loss", score_rows, multiclass_hinge, SCORE_LABELS),
    Subject(
        "multiclass_perceptron_loss", score_rows, multiclass_perceptron, SCORE_LABELS
    ),
    Subject("multiclass_sparsemax_loss", score_rows, sparsemax, SCORE_LABELS),
    Subject(
        "dice_loss",
        lambda limit: {"predictions": pixels(limit)},
        dice,
        {"targets": PIXELS, "reduction": "none"},
        noise=rounding_of_pixels,
    ),
    Subject(
        "multiclass_generalized_dice_loss",
        lambda limit: {"predictions": pixels(limit)[..., [0, 2]]},
        generalized_dice,
        {"targets": PIXELS[..., [0, 2]]},
        noise=rounding_of_pixels,
    ),
    Subject(
        "binary_dice_loss",
        lambda limit: {"predictions": sure(limit) - 8},
        binary_dice,
        {"targets": np.tile(np.eye(4)[2], (len(LABELS), 1))},
    ),
    Subject(
        "ntxent", groups, ntxent, {"labels": np.arange(4) // 2, "temperature": 0.07}
    ),
    Subject("triplet_margin_loss", triplets, triplet, noise=rounding_of_distances),
    Subject(
        "triplet_margin_loss",
        triplets,
        triplet,
        {"norm_degree": 8, "eps": 0.0},
        noise=rounding_of_distances,
        label="-8",
    ),
    Subject(
        "smooth_labels",
        lambda limit: {"labels": HOT},
        lambda labels, alpha: (1 - alpha) * labels + alpha / 4,
        {"alpha": 0.1},
        high=1,
    ),
    Subject("ctc_loss", frames, ctc, CTC, exact_below=5e4),
    Subject(
        "ctc_loss_with_forward_probs",
        frames,
        ctc,
        CTC,
        exact_below=5e4,
        of=lambda x: x[0],
    ),
]


def test_every_loss_is_a_subject():
    assert {subject.name for subject in SUBJECTS} == set(losses.__all__)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda x: x.name + x.label)
@pytest.mark.costly
def test_digits(subject, dtype):
    """Rounded once from float32, which has as many digits as the formula."""
    info = jnp.finfo(dtype)
    floats = subject.floats(min(1e30, 0.9 * float(info.max)))
    floats = {k: jnp.asarray(x.astype(dtype)) for k, x in floats.items()}

    @jax.jit
    def value_and_grads(floats):
        value, vjp = jax.vjp(lambda floats: subject(**floats), floats)
        return value, vjp(jnp.ones_like(value))[0]

    found, grads = value_and_grads(floats)
    assert found.dtype == dtype
    exact = {k: np.asarray(x).astype(float) for k, x in floats.items()}
    expected = subject.formula(**exact, **subject.rest)
    noise = subject.noise(max(float(info.eps), EPS), **exact)
    found = np.asarray(found).astype(float)
    fits = np.abs(expected) < min(float(info.max), subject.exact_below)
    assert np.all((found >= subject.low) & (found <= subject.high))
    rtol = subject.rtol + (0 if dtype == jnp.float32 else float(info.eps))
    # Numbers below the normal ones lose their digits, or become 0.
    least = float(info.tiny) * (1 if dtype == jnp.float32 else float(info.eps))
    error = np.where(fits, np.abs(found - expected), 0)
    allowed = rtol * np.abs(expected) + noise + least
    bad = ~(error <= allowed)
    assert not np.any(bad), (found[bad], expected[bad], (error / allowed)[bad])
    for name, grad in grads.items():
        grad = np.asarray(grad).astype(float)
        assert np.all(np.isfinite(grad[fits] if fits.ndim else grad)), (name, grad)


@pytest.mark.slow
def test_logarithms_of_probabilities_are_not_positive():
    logits = jnp.asarray(frames(1e30)["logits"], jnp.float32)
    fn = lambda x: losses.ctc_loss_with_forward_probs(x, **CTC)
    loss, blank, label = jax.jit(fn)(logits)
    assert jnp.all(blank <= 0) and jnp.all(label <= 0)
    last = np.sum(CTC["label_paddings"] == 0, 1)
    np.testing.assert_allclose(blank[-1, np.arange(len(last)), last], -loss, atol=1e-6)


@pytest.mark.slow
def test_equal_arguments():
    """A cosine has an angle, and a divergence a root, with any rounding."""
    random = np.random.default_rng(0)
    x = random.normal(size=(200, 7)).astype(np.float32)
    assert np.all(np.isfinite(np.arccos(losses.cosine_similarity(x, x))))
    np.testing.assert_array_equal(losses.cosine_distance(x, x), 0)
    p = random.dirichlet(np.ones(50), 200).astype(np.float32)
    found = losses.kl_divergence(np.log(p), p)
    assert np.all((found >= 0) & (found < 1e-11))
    found = losses.generalized_kl_divergence(np.log(1e3 * p), 1e3 * p)
    assert np.all((found >= 0) & (found < 1e-8))


def test_divergence_of_different_sums():
    """The formula, which is negative here: these are not distributions."""
    p, q = np.array([0.3, 0.5], np.float32), np.array([0.2, 0.4], np.float32)
    expected = np.sum(q * np.log(q / p, dtype=float))
    assert expected < 0
    np.testing.assert_allclose(losses.kl_divergence(np.log(p), q), expected, rtol=1e-6)
    large = np.array([100.0, 0], np.float32)  # its exponential is infinite
    expected = np.sum(q * (np.log(q) - large), dtype=float)
    np.testing.assert_allclose(losses.kl_divergence(large, q), expected, rtol=1e-6)


def test_close_distributions_in_float64(x64):
    log_p = log_softmax(np.arange(5.0) / 4)
    log_q = log_softmax(np.arange(5.0) / 4 + 1e-7 * np.cos(np.arange(5)))
    with x64():
        found = losses.kl_divergence_with_log_targets(log_p, log_q)
        one = losses.generalized_kl_divergence(np.array([0.3]), np.ones(1))
    expected = np.sum(np.exp(log_q) * (log_q - log_p) ** 2) / 2
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_allclose(one, np.expm1(0.3) - 0.3, rtol=1e-14)


@pytest.mark.slow
def test_gradients_have_digits():
    """For the label's score, one minus a probability near 1 would lose all digits."""
    x, label = jnp.array([30.0, 0.0, 1.0]), 0
    integer = losses.softmax_cross_entropy_with_integer_labels
    grad = jax.grad(lambda x: integer(x, label))(x)
    np.testing.assert_allclose(grad[0], -(1 + np.e) * np.exp(-30), rtol=1e-5)
    binary = jax.grad(lambda x: losses.sigmoid_binary_cross_entropy(x, 1))(x[0])
    np.testing.assert_allclose(binary, -np.exp(-30), rtol=1e-5)
