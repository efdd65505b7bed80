"""The laws of all losses: one table of subjects, and one test for each law."""

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.scipy.special import logsumexp

from eqopt import losses

from ..interpreter import interpreted


@dataclasses.dataclass(frozen=True)
class Subject:
    """A call of a loss. `floats` are differentiated, in the order of the arguments."""

    name: str
    floats: dict[str, Any]
    rest: dict[str, Any] = dataclasses.field(default_factory=dict)
    # What Optax calls the arguments that have another name here.
    renamed: dict[str, str] = dataclasses.field(default_factory=dict)
    # Whether the loss of each example does not depend on the others.
    batched: bool = True
    # Whether some of Optax's derivatives are NaN.
    nan_in_optax: bool = False

    def __str__(self):
        return "-".join(
            [self.name, *(k for k, x in self.rest.items() if np.ndim(x) == 0)]
        )

    def __call__(self, *floats, **rest):
        fn = loss_named(self.name)
        # JAX keeps the array that it made of an array of NumPy in a compiled program, and
        # returns it again. It would have 64 bits after a test that turned these on.
        new = lambda x: x.copy() if isinstance(x, np.ndarray) else x
        rest = {k: new(x) for k, x in (rest or self.rest).items()}
        return fn(**dict(zip(self.floats, floats, strict=True)), **rest)


def loss_named(name):
    if name == "make_fenchel_young_loss":
        return losses.make_fenchel_young_loss(logsumexp)
    return getattr(losses, name)


rng = np.random.default_rng(0)


def normal(*shape):
    return rng.normal(size=shape).astype(np.float32)


def simplex(*shape):
    p = rng.gamma(1.0, size=shape)
    return (p / p.sum(-1, keepdims=True)).astype(np.float32)


def one_hot(*shape):
    return np.eye(shape[-1], dtype=np.float32)[rng.integers(shape[-1], size=shape[:-1])]


def bools(*shape):
    mask = rng.random(shape) < 0.7
    mask[..., 0] = True
    return mask


def signs(*shape):
    return np.where(rng.random(shape) < 0.5, -1, 1).astype(np.int8)


def ints(high, *shape):
    return rng.integers(high, size=shape)


REGRESSION = {"predictions": 2 * normal(4, 5), "targets": normal(4, 5)}
VECTORS = {"predictions": normal(4, 5), "targets": normal(4, 5)}
LOGITS = {"logits": 2 * normal(4, 5)}
CLASSES = LOGITS | {"labels": simplex(4, 5)}
OUTPUTS = {"predictor_outputs": normal(4, 5)}, {"targets": signs(4, 5)}
SCORES = {"scores": normal(4, 5)}, {"labels": ints(5, 4)}
PIXELS, HOT = {"predictions": normal(3, 2, 4, 5)}, {"targets": one_hot(3, 2, 4, 5)}
KL = {"log_predictions": np.log(simplex(4, 5)), "targets": simplex(4, 5)}
LOG_KL = {
    "log_predictions": KL["log_predictions"],
    "log_targets": np.log(simplex(4, 5)),
}
EMBEDDED = {"embeddings": normal(6, 3)}
TRIPLETS = {k: normal(4, 6) for k in ("anchors", "positives", "negatives")}
CTC_LABELS = 1 + ints(4, 4, 3)
CTC_LABELS[0, 1] = CTC_LABELS[0, 0]
CTC = {
    "logit_paddings": np.float32(np.arange(9) >= np.array([[9], [7], [5], [8]])),
    "labels": CTC_LABELS,
    "label_paddings": np.float32(np.arange(3) >= np.array([[3], [2], [0], [1]])),
}
OTHER_BLANK = {"labels": CTC_LABELS - 1, "blank_id": 4, "log_epsilon": -1e4}
FRAMES = {"logits": 2 * normal(4, 9, 5)}
WHERE = {"where": bools(4, 5)}
WEIGHTS = {"class_weights": np.arange(5, dtype=np.float32), "ignore_background": True}
WHOLE = ["class_weights", "axis"]  # arguments that are not of single examples
INTEGER = "softmax_cross_entropy_with_integer_labels"
GENERALIZED = "multiclass_generalized_dice_loss"
RANKING = "ranking_softmax_loss"

SUBJECTS = [
    Subject("squared_error", REGRESSION),
    Subject("l2_loss", REGRESSION),
    Subject("huber_loss", REGRESSION),
    Subject("huber_loss", REGRESSION, {"delta": 0.3}),
    Subject("log_cosh", REGRESSION),
    Subject("cosine_similarity", VECTORS),
    Subject("cosine_similarity", VECTORS, {"eps": 4.0}, {"eps": "epsilon"}),
    Subject("cosine_distance", VECTORS, {"axis": 0}, batched=False),
    Subject("cosine_distance", VECTORS, WHERE),
    Subject("sigmoid_binary_cross_entropy", CLASSES),
    Subject("sigmoid_binary_cross_entropy", LOGITS, {"labels": bools(4, 5)}),
    Subject("sigmoid_focal_loss", CLASSES),
    Subject("sigmoid_focal_loss", LOGITS, {"labels": ints(2, 4, 5), "gamma": 0.5}),
    Subject("sigmoid_focal_loss", LOGITS, {"labels": ints(2, 4, 5), "alpha": 0.25}),
    Subject("hinge_loss", *OUTPUTS),
    Subject("perceptron_loss", *OUTPUTS),
    Subject("sparsemax_loss", LOGITS, {"labels": ints(2, 4, 5)}),
    Subject("softmax_cross_entropy", CLASSES),
    Subject("softmax_cross_entropy", CLASSES, WHERE, nan_in_optax=True),
    Subject("softmax_cross_entropy", CLASSES, {"axis": 0}, batched=False),
    Subject("safe_softmax_cross_entropy", CLASSES),
    Subject(INTEGER, LOGITS, {"labels": ints(5, 4)}),
    Subject(INTEGER, LOGITS, {"labels": ints(4, 5), "axis": 0}, batched=False),
    Subject(
        INTEGER,
        {"logits": normal(4, 2, 3, 5)},
        {"labels": ints(10, 4, 3), "axis": (3, 1)},
    ),
    Subject(INTEGER, LOGITS, {"labels": np.zeros(4, np.int32)} | WHERE),
    Subject("poly_loss_cross_entropy", CLASSES),
    Subject(
        "poly_loss_cross_entropy", CLASSES, {"epsilon": -1.0} | WHERE, nan_in_optax=True
    ),
    Subject("kl_divergence", KL),
    Subject("kl_divergence", KL, WHERE),
    Subject("kl_divergence", KL, {"axis": None}, batched=False),
    Subject("kl_divergence_with_log_targets", LOG_KL),
    Subject("kl_divergence_with_log_targets", LOG_KL, {"axis": (0, 1)}, batched=False),
    Subject("generalized_kl_divergence", KL),
    Subject("generalized_kl_divergence", KL, WHERE),
    Subject("multiclass_hinge_loss", *SCORES),
    Subject("multiclass_perceptron_loss", *SCORES),
    Subject("multiclass_sparsemax_loss", *SCORES),
    Subject("dice_loss", PIXELS, HOT),
    Subject(
        "dice_loss",
        PIXELS,
        HOT | WEIGHTS | {"smooth": 0.1, "alpha": 0.3, "beta": 0.7, "reduction": "sum"},
    ),
    Subject("dice_loss", PIXELS, HOT | {"reduction": "none", "axis": 1}),
    Subject(
        "dice_loss", {"predictions": normal(3, 4, 1)}, {"targets": ints(2, 3, 4, 1)}
    ),
    Subject(
        "dice_loss",
        {"predictions": simplex(3, 2, 5)},
        {"targets": one_hot(3, 2, 5), "apply_softmax": False},
    ),
    Subject(GENERALIZED, PIXELS, HOT, batched=False),
    Subject(
        GENERALIZED,
        PIXELS,
        HOT | {"ignore_background": True, "smooth": 0.5},
        batched=False,
    ),
    Subject(
        "binary_dice_loss", {"predictions": normal(3, 4)}, {"targets": bools(3, 4)}
    ),
    Subject("ntxent", EMBEDDED, {"labels": ints(3, 6)}, batched=False),
    Subject(
        "ntxent", EMBEDDED, {"labels": ints(3, 6), "temperature": 0.5}, batched=False
    ),
    Subject("triplet_margin_loss", TRIPLETS),
    Subject(
        "triplet_margin_loss", TRIPLETS, {"norm_degree": 4, "margin": 0.2, "eps": 0.1}
    ),
    Subject("triplet_margin_loss", TRIPLETS, {"axis": 0}, batched=False),
    Subject(RANKING, CLASSES, batched=False),
    Subject(RANKING, CLASSES, {"weights": simplex(4, 5), "reduce_fn": None} | WHERE),
    Subject(RANKING, CLASSES, {"reduce_fn": jnp.sum} | WHERE, batched=False),
    Subject("smooth_labels", {"labels": one_hot(4, 5)}, {"alpha": 0.1}),
    Subject("ctc_loss", FRAMES, CTC),
    Subject("ctc_loss", FRAMES, CTC | OTHER_BLANK),
    Subject(
        "make_fenchel_young_loss", {"scores": normal(4, 5), "targets": simplex(4, 5)}
    ),
]

# The further calls of a loss belong to the long tail.
FIRST = {subject.name: subject for subject in reversed(SUBJECTS)}
every_subject = pytest.mark.parametrize(
    "subject",
    [
        pytest.param(
            x, marks=[] if FIRST[x.name] is x else [pytest.mark.slow], id=str(x)
        )
        for x in SUBJECTS
    ],
)


def arrays(subject):
    return [jnp.asarray(x) for x in subject.floats.values()]


def test_every_loss_is_a_subject():
    covered = {subject.name for subject in SUBJECTS} | {"ctc_loss_with_forward_probs"}
    assert covered == set(losses.__all__)


def close(a, b, rtol=1e-5, atol=1e-6):
    np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


def with_gradients(fn, count):
    """The value of `fn`, and the gradients of its sum by its first arguments."""

    def both(*floats):
        value, vjp = jax.vjp(lambda *x: fn(*x, *floats[count:]), *floats[:count])
        return value, vjp(jnp.ones_like(value))

    return both


@every_subject
@pytest.mark.costly
def test_parity(subject, standard_promotion):
    fn = (
        optax.losses.make_fenchel_young_loss(logsumexp)
        if subject.name == "make_fenchel_young_loss"
        else getattr(optax.losses, subject.name)
    )
    rest = {subject.renamed.get(k, k): v for k, v in subject.rest.items()}
    rest = {
        k: jnp.asarray(v) if isinstance(v, np.ndarray) else v for k, v in rest.items()
    }
    if rest.pop("apply_softmax", None) is False:
        # Optax looks at the values, which `jit` does not have.
        expected = fn(**subject.floats, **rest, apply_softmax=False)
        return close(subject(*arrays(subject)), expected)

    def theirs(*floats):
        return fn(**dict(zip(subject.floats, floats, strict=True)), **rest)

    floats = arrays(subject)
    expected, of_theirs = interpreted(with_gradients(theirs, len(floats)))(*floats)
    found, of_ours = interpreted(with_gradients(subject.__call__, len(floats)))(*floats)
    assert found.shape == expected.shape
    close(found, expected)
    for a, b in zip(of_ours, of_theirs, strict=True):
        has_nan = bool(jnp.any(jnp.isnan(b)))
        assert has_nan <= subject.nan_in_optax
        close(a, jnp.where(jnp.isnan(b), a, b), 2e-5, 5e-6)
        assert np.all(np.isfinite(a))


@every_subject
@pytest.mark.costly
def test_outside_of_jit(subject):
    """NumPy's float64 becomes float32, without a warning. No value is NaN on the way."""
    wide = [np.asarray(x, np.float64) for x in subject.floats.values()]
    found = subject(*wide)
    assert isinstance(found, jax.Array) and found.dtype == jnp.float32
    assert jnp.all(jnp.isfinite(found))
    with jax.disable_jit(), jax.debug_nans(True):
        close(subject(*wide), found)


@pytest.mark.slow
@pytest.mark.parametrize("subject", FIRST.values(), ids=str)
def test_derivatives(subject, x64):
    """First and second ones, in forward mode, are differences of what they derive.

    `test_parity` has the first ones in backward mode. The value of a derivative that has
    a rule must have derivatives, too.
    """
    with x64():
        floats = tuple(jnp.asarray(x, jnp.float64) for x in subject.floats.values())
        direction = tuple(np.cos(x + 1) for x in floats)
        step = 1e-6
        total = lambda *floats: jnp.sum(subject(*floats))
        slope = lambda x: jax.grad(total)(x, *floats[1:])

        def pairs(floats):
            for fn, of in ((total, floats), (slope, floats[:1])):
                along = direction[: len(of)]
                _, forward = jax.jvp(fn, of, along)
                ahead, behind = (
                    fn(*(x + s * step * d for x, d in zip(of, along, strict=True)))
                    for s in (1, -1)
                )
                yield forward, (ahead - behind) / (2 * step)

        for forward, difference in interpreted(lambda x: [*pairs(x)])(floats):
            close(forward, difference, 1e-4, 1e-6)


@every_subject
@pytest.mark.costly
def test_nothing_becomes_float64(subject, x64):
    with x64():
        single = [jnp.asarray(x, jnp.float32) for x in subject.floats.values()]
        traced = jax.make_jaxpr(with_gradients(subject.__call__, len(single)))(*single)
        assert all(x.dtype == jnp.float32 for x in traced.out_avals)
        # Python numbers are f64[].
        has_wide_arrays = bool(re.search(r"f64\[\d", str(traced)))
        assert not has_wide_arrays
        double = [jax.ShapeDtypeStruct(x.shape, jnp.float64) for x in single]
        assert jax.eval_shape(subject.__call__, *double).dtype == jnp.float64
