"""Sure predictions: no loss is below its bound, and small losses have their digits.

A loss that is computed as a difference of larger numbers has none where a model is
right: it may even be negative, and its logarithm NaN. Each subject has rows of
confident, saturated and huge arguments.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.scipy.special import logsumexp

from eqopt import losses


EPS = float(np.finfo(np.float32).eps)  # all losses are computed in float32 here
DTYPES = [jnp.float32, jnp.bfloat16, jnp.float16]
LOST = 1e-13


def nothing(*args, **kwargs):
    return 0.0


def from_optax(subject, floats):
    """Optax's loss in float64, where what is lost to cancellation is below `LOST`."""
    fn = getattr(optax.losses, subject.name)
    if subject.name == "make_fenchel_young_loss":
        fn = fn(logsumexp)
    arrays = {k: jnp.asarray(x) for k, x in floats.items()}
    is_array = lambda x: isinstance(x, np.ndarray)
    rest = {k: jnp.asarray(x) if is_array(x) else x for k, x in subject.rest.items()}
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return np.asarray(subject.of(fn(**arrays, **rest)))


@dataclasses.dataclass(frozen=True)
class Subject:
    """A call of a loss. The floats are functions of the largest number to use."""

    name: str
    floats: Callable[[float], dict[str, Any]]
    rest: dict[str, Any] = dataclasses.field(default_factory=dict)
    # Where Optax has no digits in float64, either.
    formula: Callable[..., Any] | None = None
    low: float = 0.0
    high: float = np.inf
    # The change of the result due to rounded arguments, for the eps of their dtype and
    # the result. A loss cannot be more exact.
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


def rounding_of_maxima(eps, result, scores):
    """It cannot know more than `max_fun`, which returns a large number."""
    return 2 * EPS * np.max(np.abs(scores), -1)


def rounding_of_cosine(eps, result, **vectors):
    return 4 * EPS


def rounding_of_distance(eps, result, **vectors):
    return 4 * EPS * np.sqrt(np.abs(result)) + EPS**2


def rounding_of_distances(eps, result, anchors, **others):
    norm = lambda x: np.sqrt(np.sum(x.astype(np.longdouble) ** 2, -1) + 1e-6)
    return 4 * EPS * sum(norm(anchors - x) for x in others.values()).astype(float)


def rounding_of_pixels(eps, result, predictions):
    return EPS  # of 1 - p, for each pixel


# Formulas of divergences. Their arguments are NumPy arrays of float64.


def log_softmax(x):
    return x - np.logaddexp.reduce(x, -1, keepdims=True)


def bregman(p, q, log_p, log_q):
    with np.errstate(invalid="ignore", over="ignore"):
        d = log_q - log_p
        x = np.where(np.abs(d) < 1, d, 0)
        series = x**2 / 2 - x**3 / 6 + x**4 / 24 - x**5 / 120 + x**6 / 720
        near = q * np.where(np.abs(x) < 1e-2, series, x + np.expm1(-x))
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


def rounding_of_logs(eps, result, log_predictions, targets=None, log_targets=None):
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


def rounding_of_arrays(eps, result, log_predictions, targets):
    return rounding_of_logs(EPS, result, log_predictions, targets)


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
SIGNS = {"targets": np.ones(2 * len(ONE) + 1, int)}


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
    Subject("squared_error", errors),
    Subject("l2_loss", errors),
    Subject("huber_loss", errors),
    Subject("log_cosh", errors),
    Subject("cosine_similarity", vectors, low=-1, high=1, noise=rounding_of_cosine),
    Subject("cosine_distance", vectors, high=2, noise=rounding_of_distance),
    Subject("sigmoid_binary_cross_entropy", both_sides, SIDES),
    Subject("sigmoid_focal_loss", both_sides, SIDES),
    Subject("hinge_loss", one_side("predictor_outputs"), SIGNS),
    Subject("perceptron_loss", one_side("predictor_outputs"), SIGNS),
    Subject("sparsemax_loss", one_side("logits"), {"labels": 1}),
    Subject("softmax_cross_entropy", logits, {"labels": HOT}),
    Subject("safe_softmax_cross_entropy", logits, {"labels": HOT}),
    Subject("softmax_cross_entropy_with_integer_labels", logits, OF_CLASSES),
    Subject("poly_loss_cross_entropy", logits, {"labels": HOT, "epsilon": 2.0}),
    Subject("poly_loss_cross_entropy", logits, MINUS_ONE, label="-1"),
    Subject("ranking_softmax_loss", logits, {"labels": HOT, "reduce_fn": None}),
    Subject(
        "make_fenchel_young_loss",
        lambda limit: {"scores": sure(limit)},
        {"targets": HOT},
        noise=rounding_of_maxima,
    ),
    Subject(
        "kl_divergence",
        lambda limit: {"log_predictions": LOG_P, "targets": np.exp(LOG_Q)},
        formula=generalized,
        noise=rounding_of_logs,
    ),
    Subject(
        "kl_divergence_with_log_targets",
        lambda limit: {"log_predictions": LOG_P, "log_targets": LOG_Q},
        formula=with_log_targets,
        noise=rounding_of_logs,
    ),
    Subject(
        "generalized_kl_divergence",
        lambda limit: {
            "log_predictions": LOG_P + np.log(POSITIVE),
            "targets": np.exp(LOG_Q) * POSITIVE,
        },
        formula=generalized,
        noise=rounding_of_arrays,
    ),
    Subject("multiclass_hinge_loss", score_rows, SCORE_LABELS),
    Subject("multiclass_perceptron_loss", score_rows, SCORE_LABELS),
    Subject("multiclass_sparsemax_loss", score_rows, SCORE_LABELS),
    Subject(
        "dice_loss",
        lambda limit: {"predictions": pixels(limit)},
        {"targets": PIXELS, "reduction": "none"},
        noise=rounding_of_pixels,
    ),
    Subject(
        "multiclass_generalized_dice_loss",
        lambda limit: {"predictions": pixels(limit)[..., [0, 2]]},
        {"targets": PIXELS[..., [0, 2]]},
        noise=rounding_of_pixels,
    ),
    Subject(
        "binary_dice_loss",
        lambda limit: {"predictions": sure(limit) - 8},
        {"targets": np.tile(np.eye(4)[2], (len(LABELS), 1))},
    ),
    Subject("ntxent", groups, {"labels": np.arange(4) // 2, "temperature": 0.07}),
    Subject("triplet_margin_loss", triplets, noise=rounding_of_distances),
    Subject(
        "triplet_margin_loss",
        triplets,
        {"norm_degree": 8, "eps": 0.0},
        noise=rounding_of_distances,
        label="-8",
    ),
    Subject(
        "smooth_labels",
        lambda limit: {"labels": HOT},
        {"alpha": 0.1},
        high=1,
    ),
    Subject("ctc_loss", frames, CTC, exact_below=5e4),
    Subject(
        "ctc_loss_with_forward_probs",
        frames,
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
def test_digits(subject, dtype, x64):
    """Rounded once from float32, which has the digits of Optax in float64."""
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
    if subject.formula:
        expected = subject.formula(**exact)
    else:
        with x64():
            expected = from_optax(subject, exact)
    noise = subject.noise(max(float(info.eps), EPS), expected, **exact)
    found = np.asarray(found).astype(float)
    fits = np.abs(expected) < min(float(info.max), subject.exact_below)
    assert np.all((found >= subject.low) & (found <= subject.high))
    rtol = 1e-5 + (0 if dtype == jnp.float32 else float(info.eps))
    # Numbers below the normal ones lose their digits, or become 0.
    least = float(info.tiny) * (1 if dtype == jnp.float32 else float(info.eps))
    error = np.where(fits, np.abs(found - expected), 0)
    allowed = rtol * np.abs(expected) + noise + least + LOST
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
