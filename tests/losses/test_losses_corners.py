"""Where the textbook formula is infinite, or not a number."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.special
from jax.scipy.special import logsumexp

from eqopt import losses


pytestmark = pytest.mark.slow


INF = jnp.inf
NAN = jnp.nan


def f32(*values):
    return jnp.array(values, jnp.float32)


def value_and_grads(fn, *floats):
    """The value, and the gradients of its sum."""

    @jax.jit
    def both(*floats):
        value, vjp = jax.vjp(fn, *floats)
        return value, vjp(jnp.ones_like(value))

    return both(*floats)


def assert_finite(fn, *floats):
    value, grads = value_and_grads(fn, *floats)
    assert jnp.all(jnp.isfinite(value)), value
    for grad in grads:
        assert jnp.all(jnp.isfinite(grad)), grads
    return value, grads


BCE = losses.sigmoid_binary_cross_entropy
FOCAL = losses.sigmoid_focal_loss
CE = losses.softmax_cross_entropy
INTEGER = losses.softmax_cross_entropy_with_integer_labels
KL = losses.kl_divergence
LOG_KL = losses.kl_divergence_with_log_targets
RANK = losses.ranking_softmax_loss
GDL = losses.multiclass_generalized_dice_loss
NO = np.zeros(2, bool)

# The loss, its floating arguments, and the value that it must have.
CORNERS = {
    "cosine of zeros": (losses.cosine_similarity, [f32(0, 0), f32(1, 2)], 0),
    "cosine of nothing": (
        lambda x, y: losses.cosine_similarity(x, y, where=NO),
        [f32(1, NAN), f32(1, 2)],
        0,
    ),
    "distance of zeros": (losses.cosine_distance, [f32(0, 0), f32(0, 0)], 1),
    "cosine of large": (
        losses.cosine_similarity,
        [f32(1e30, 0), f32(1e30, 1e30)],
        0.5**0.5,
    ),
    "cosine of small": (
        losses.cosine_similarity,
        [f32(1e-30, 0), f32(1e-30, 1e-30)],
        0.5**0.5,
    ),
    "sure and right": (BCE, [f32(INF, -INF), f32(1, 0)], 0),
    "sure, right, focal": (FOCAL, [f32(INF, -INF), f32(1, 0)], 0),
    "sure, right, gamma 0": (
        lambda x, y: FOCAL(x, y, gamma=0.0),
        [f32(INF, -INF), f32(1, 0)],
        0,
    ),
    "nearly sure, gamma below 1": (
        lambda x, y: FOCAL(x, y, gamma=0.5),
        [f32(300, -300), f32(1, 0)],
        0,
    ),
    "large logits": (BCE, [f32(1e4, -1e4), f32(0, 1)], 1e4),
    "impossible class": (CE, [f32(0, 0, -INF), f32(1, 0, 0)], np.log(2)),
    "impossible class, safe": (
        losses.safe_softmax_cross_entropy,
        [f32(0, 0, -INF), f32(1, 0, 0)],
        np.log(2),
    ),
    "impossible class, poly": (
        losses.poly_loss_cross_entropy,
        [f32(0, 0, -INF), f32(1, 0, 0)],
        np.log(2) + 1,
    ),
    "impossible class, integer": (
        lambda x: INTEGER(x, 0),
        [f32(0, 0, -INF)],
        np.log(2),
    ),
    "sure class": (CE, [f32(INF, 0, -INF), f32(1, 0, 0)], 0),
    "sure class, safe": (
        losses.safe_softmax_cross_entropy,
        [f32(INF, 0), f32(1, 0)],
        0,
    ),
    "sure class, poly": (
        losses.poly_loss_cross_entropy,
        [f32(INF, 0), f32(1, 0)],
        0,
    ),
    "sure class, integer": (lambda x: INTEGER(x, 0), [f32(INF, 0)], 0),
    "sure item": (RANK, [f32(INF, 0), f32(1, 0)], 0),
    "hinge, sure": (lambda x: losses.multiclass_hinge_loss(x, 0), [f32(INF, 0)], 0),
    "perceptron, sure": (
        lambda x: losses.multiclass_perceptron_loss(x, 0),
        [f32(INF, 0)],
        0,
    ),
    "sparsemax, sure": (
        lambda x: losses.multiclass_sparsemax_loss(x, 0),
        [f32(INF, 0, -INF)],
        0,
    ),
    "binary hinge, sure": (
        lambda x: losses.hinge_loss(x, np.array([1, -1])),
        [f32(INF, -INF)],
        0,
    ),
    "binary perceptron, sure": (
        lambda x: losses.perceptron_loss(x, np.array([1, -1])),
        [f32(INF, -INF)],
        0,
    ),
    "binary sparsemax, sure": (
        lambda x: losses.sparsemax_loss(x, np.array([1, 0])),
        [f32(INF, -INF)],
        0,
    ),
    "dice, sure": (
        lambda x: losses.dice_loss(x, np.eye(2)[None]),
        [f32(INF, 0, -INF, 0).reshape(1, 2, 2)],
        0,
    ),
    "generalized dice, sure": (
        lambda x: GDL(x, np.eye(2)[None]),
        [f32(INF, 0, -INF, 0).reshape(1, 2, 2)],
        0,
    ),
    "binary dice, sure": (
        lambda x: losses.binary_dice_loss(x, np.array([[1, 0]])),
        [f32(INF, -INF)[None]],
        0,
    ),
    "CTC, sure": (
        lambda x: losses.ctc_loss(
            x, np.zeros((1, 1)), np.array([[1]]), np.zeros((1, 1))
        ),
        [f32(0, INF)[None, None]],
        0,
    ),
    "large logits, many classes": (CE, [f32(1e30, 0, 0), f32(1, 0, 0)], 0),
    "no labels": (CE, [f32(1, 2), f32(0, 0)], 0),
    "no classes": (
        lambda x, y: CE(x, y, where=NO),
        [f32(NAN, INF), f32(NAN, 1)],
        0,
    ),
    "no classes, integer": (lambda x: INTEGER(x, -1, where=NO), [f32(NAN, INF)], 0),
    "no classes, poly": (
        lambda x, y: losses.poly_loss_cross_entropy(x, y, where=NO),
        [f32(NAN, INF), f32(NAN, 1)],
        0,
    ),
    "KL of zeros": (KL, [f32(-INF, 0), f32(0, 1)], 0),
    "KL of zeros, generalized": (
        losses.generalized_kl_divergence,
        [f32(-INF, 0), f32(0, 0)],
        1,
    ),
    "KL of zeros, log": (LOG_KL, [f32(-INF, 0), f32(-INF, 0)], 0),
    "KL of nothing": (lambda p, q: KL(p, q, where=NO), [f32(NAN, 0), f32(NAN, 1)], 0),
    "KL of nothing, log": (
        lambda p, q: LOG_KL(p, q, where=NO),
        [f32(NAN, 0), f32(NAN, 1)],
        0,
    ),
    "KL of nothing, generalized": (
        lambda p, q: losses.generalized_kl_divergence(p, q, where=NO),
        [f32(NAN, 0), f32(NAN, 1)],
        0,
    ),
    "hinge, impossible": (
        lambda x: losses.multiclass_hinge_loss(x, 0),
        [f32(0, -INF)],
        0,
    ),
    "perceptron, impossible": (
        lambda x: losses.multiclass_perceptron_loss(x, 0),
        [f32(0, -INF)],
        0,
    ),
    "sparsemax, impossible": (
        lambda x: losses.multiclass_sparsemax_loss(x, 0),
        [f32(0, 0, -INF)],
        0.25,
    ),
    "binary sparsemax, large": (lambda x: losses.sparsemax_loss(x, 1), [f32(1e30)], 0),
    "smoothing nothing": (
        lambda y: losses.smooth_labels(y, 0.1, where=NO),
        [f32(1, 0)],
        0,
    ),
    "no dice": (
        lambda x: losses.dice_loss(
            x, np.zeros((1, 2, 2)), smooth=0.0, apply_softmax=False
        ),
        [jnp.zeros((1, 2, 2))],
        0,
    ),
    "no binary dice": (
        lambda x: losses.binary_dice_loss(x, NO[None], smooth=0.0, apply_sigmoid=False),
        [jnp.zeros((1, 2))],
        0,
    ),
    "no class in the batch": (
        lambda x: GDL(x, np.zeros((1, 2, 2)), smooth=0.0),
        [jnp.zeros((1, 2, 2))],
        1,
    ),
    "no pairs": (lambda z: losses.ntxent(z, np.arange(3)), [jnp.eye(3)], 0),
    "one group": (lambda z: losses.ntxent(z, np.zeros(3)), [jnp.eye(3)], 0),
    "one example": (lambda z: losses.ntxent(z, np.zeros(1)), [jnp.eye(1)], 0),
    "embeddings of zeros": (
        lambda z: losses.ntxent(z, np.array([0, 0, 1])),
        [jnp.zeros((3, 2))],
        np.log(2),
    ),
    "no distance": (
        lambda *x: losses.triplet_margin_loss(*x, eps=0.0),
        [f32(0, 1)] * 3,
        1,
    ),
    "no distance, degree 1.5": (
        lambda *x: losses.triplet_margin_loss(*x, norm_degree=1.5),
        [f32(0, 1)] * 3,
        1,
    ),
    "no items": (lambda s, y: RANK(s, y, where=NO), [f32(NAN, 0), f32(0, NAN)], 0),
    "no items, each": (
        lambda s, y: RANK(s, y, where=NO, reduce_fn=None),
        [f32(NAN, 0), f32(0, NAN)],
        0,
    ),
    "impossible item": (RANK, [f32(0, -INF), f32(1, 0)], 0),
    "Fenchel-Young, impossible": (
        losses.make_fenchel_young_loss(logsumexp),
        [f32(0, 0, -INF), f32(1, 0, 0)],
        np.log(2),
    ),
    "log cosh, large": (losses.log_cosh, [f32(1e30, -1e30)], 1e30),
    "huber, large": (losses.huber_loss, [f32(1e30, -1e30)], 1e30),
}


@pytest.mark.parametrize("corner", CORNERS)
def test_finite(corner):
    fn, floats, expected = CORNERS[corner]
    value, _ = assert_finite(fn, *floats)
    np.testing.assert_allclose(
        value, np.full(value.shape, expected), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("name", ["CE", "integer", "ranking", "perceptron"])
def test_sure_and_wrong_is_infinite(name):
    one_hot = f32(0, 1)
    loss = {
        "CE": lambda x: CE(x, one_hot),
        "integer": lambda x: INTEGER(x, 1),
        "ranking": lambda x: RANK(x, one_hot),
        "perceptron": lambda x: losses.multiclass_perceptron_loss(x, 1),
    }[name]
    assert loss(f32(INF, 0)) == INF


@pytest.mark.parametrize(
    "fn",
    [
        INTEGER,
        *(
            getattr(losses, f"multiclass_{x}_loss")
            for x in ("hinge", "perceptron", "sparsemax")
        ),
    ],
)
@pytest.mark.parametrize("label", [-1, 3, 127, -128])
@pytest.mark.parametrize("dtype", [np.int8, np.int32])
def test_label_out_of_range_is_nan_and_has_no_gradient(fn, label, dtype):
    x = jnp.arange(6.0).reshape(2, 3)
    labels = np.array([label, 1], dtype)
    loss, (grad,) = value_and_grads(lambda x: fn(x, labels), x)
    np.testing.assert_array_equal(jnp.isnan(loss), [True, False])
    np.testing.assert_array_equal(grad[0], 0)
    assert jnp.all(jnp.isfinite(grad[1])) and jnp.any(grad[1] != 0)


def test_masked_labels_may_be_anything():
    x = jnp.arange(6.0).reshape(2, 3)
    labels = np.array([-100, 1])
    loss, (grad,) = assert_finite(lambda x: INTEGER(x, labels, where=labels >= 0), x)
    assert loss[0] == 0 and jnp.all(grad[0] == 0)
    np.testing.assert_allclose(loss[1], INTEGER(x[1], 1), rtol=1e-6)


def test_right_by_torch():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 6, 5)).astype(np.float32)
    q = scipy.special.softmax(y, -1)
    k = rng.integers(5, size=6)
    F, t = torch.nn.functional, torch.from_numpy
    pairs = [
        (losses.l2_loss(x, y) * 2, F.mse_loss(t(x), t(y), reduction="none")),
        (
            losses.huber_loss(x, y, delta=0.7),
            F.huber_loss(t(x), t(y), reduction="none", delta=0.7),
        ),
        (losses.cosine_similarity(x, y), F.cosine_similarity(t(x), t(y))),
        (CE(x, q), F.cross_entropy(t(x), t(q), reduction="none")),
        (INTEGER(x, k), F.cross_entropy(t(x), t(k), reduction="none")),
        (BCE(x, q), F.binary_cross_entropy_with_logits(t(x), t(q), reduction="none")),
        (
            CE(x, losses.smooth_labels(np.eye(5, dtype=np.float32)[k], 0.2)),
            F.cross_entropy(t(x), t(k), reduction="none", label_smoothing=0.2),
        ),
        (
            jnp.sum(KL(jax.nn.log_softmax(x), q)),
            F.kl_div(F.log_softmax(t(x), -1), t(q), reduction="sum"),
        ),
        (
            losses.triplet_margin_loss(x[:2], x[2:4], x[4:], norm_degree=3, eps=0.0),
            F.triplet_margin_loss(
                t(x[:2]), t(x[2:4]), t(x[4:]), p=3, eps=0.0, reduction="none"
            ),
        ),
        (
            losses.triplet_margin_loss(x[:2], x[2:4], x[4:], norm_degree=1, eps=0.0),
            F.triplet_margin_loss(
                t(x[:2]), t(x[2:4]), t(x[4:]), p=1, eps=0.0, reduction="none"
            ),
        ),
    ]
    for ours, theirs in pairs:
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        losses.multiclass_hinge_loss(x, k),
        np.maximum(0, [max(r[i] + 1 - r[j] for i in range(5) if i != j)
                       for r, j in zip(x, k, strict=True)]),
        rtol=1e-5,
    )  # fmt: skip


def projected(z):
    """The sparsemax from the gradient of the loss, whose label is 0."""
    grad = jax.grad(
        lambda z: jnp.sum(losses.multiclass_sparsemax_loss(z, np.zeros(len(z), int)))
    )
    return jax.jit(grad)(z) + jnp.eye(z.shape[-1])[:1].repeat(len(z), 0)


@pytest.mark.parametrize("scale", [0.1, 30.0])
@pytest.mark.parametrize("classes", [1, 7, 100])
def test_sparsemax_is_optimal(scale, classes):
    """The conditions of Karush, Kuhn and Tucker for the nearest point of the simplex."""
    z = scale * jax.random.normal(jax.random.key(0), (20, classes))
    z = z.at[0].set(1.0)  # all tied
    p = projected(z)
    assert jnp.all(p >= -1e-6)
    np.testing.assert_allclose(jnp.sum(p, -1), 1, rtol=1e-5)
    # z - p is the same wherever p is positive, and no smaller there than elsewhere.
    slack = z - p
    level = jnp.max(slack, -1, keepdims=True)
    gap = jnp.where(p > 1e-5, level - slack, 0)
    np.testing.assert_allclose(gap, 0, atol=1e-5 * max(1, scale))
    # And the loss is what this p attains.
    loss = losses.multiclass_sparsemax_loss(z, np.zeros(20, int))
    attained = jnp.sum(p * z, -1) + (1 - jnp.sum(p * p, -1)) / 2 - z[:, 0]
    np.testing.assert_allclose(loss, attained, rtol=1e-4, atol=1e-4 * max(1, scale))


def test_sparsemax_of_two_classes_is_the_binary_one():
    x = jnp.linspace(-3, 3, 25)
    two = jnp.stack([jnp.zeros_like(x), x], -1)
    for label in (0, 1):
        labels = np.full(25, label)
        expected = losses.multiclass_sparsemax_loss(two, labels)
        np.testing.assert_allclose(
            losses.sparsemax_loss(x, labels), expected, atol=1e-6
        )


def sparsemax_maximum(s):
    """From the losses with all labels: the one with label k is this, minus the score."""
    return losses.multiclass_sparsemax_loss(s, 0) + s[0]


@pytest.mark.parametrize(
    "max_fun, same",
    [
        (logsumexp, INTEGER),
        (jnp.max, losses.multiclass_perceptron_loss),
        (sparsemax_maximum, losses.multiclass_sparsemax_loss),
    ],
)
def test_fenchel_young(max_fun, same):
    scores = jax.random.normal(jax.random.key(0), (2, 3, 4))
    labels = np.array([[0, 1, 2], [3, 0, 1]])
    loss = losses.make_fenchel_young_loss(max_fun)
    one_hot = jax.nn.one_hot(labels, 4)
    found, (grad, _) = value_and_grads(loss, scores, one_hot)
    expected, (slope,) = value_and_grads(lambda s: same(s, labels), scores)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(grad, slope, rtol=1e-5, atol=1e-6)
    assert loss(scores[0, 0], one_hot[0, 0]).shape == ()


def test_fenchel_young_hands_arguments_on():
    def soft(scores, temperature, *, shift):
        return temperature * logsumexp(scores / temperature) + shift

    scores, targets = jnp.ones((2, 3)), jnp.zeros((2, 3))
    loss = losses.make_fenchel_young_loss(soft)
    found = loss(scores, targets, jnp.float32(2.0), shift=1.0)
    np.testing.assert_allclose(found, 2 + 2 * np.log(3) * np.ones(2), rtol=1e-6)


def test_absent_class_does_not_outweigh_the_others(standard_promotion):
    """In Optax it has nearly all of the weight."""
    x = jax.random.normal(jax.random.key(0), (2, 8, 3))
    classes = np.zeros((2, 8), int)
    classes[0, 0] = 1  # and 2 is nowhere
    t = np.eye(3, dtype=np.float32)[classes]
    each = jnp.mean(losses.dice_loss(x, t, reduction="none"), 0)
    weights = np.array([1 / 15**2, 1, 1])
    expected = jnp.sum(each * weights) / weights.sum()
    np.testing.assert_allclose(GDL(x, t), expected, rtol=1e-5)
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


def test_masks_of_every_shape():
    x, y = jax.random.normal(jax.random.key(0), (2, 3, 4))
    y = jax.nn.softmax(y)
    classes = np.array([True, True, False, True])
    np.testing.assert_allclose(
        CE(x, y, where=classes[None]), CE(x[:, classes], y[:, classes]), rtol=1e-6
    )
    examples = np.array([1.0, 0.0, 1.0], np.float32)
    expected = CE(x, y) * examples
    np.testing.assert_allclose(CE(x, y, where=examples), expected, rtol=1e-6)
    np.testing.assert_allclose(CE(x, y, where=examples[:, None]), expected, rtol=1e-6)


def test_one_number_goes_with_every_shape():
    x = f32(-1, 2)
    np.testing.assert_array_equal(losses.l2_loss(x, 1), losses.l2_loss(x, f32(1, 1)))
    np.testing.assert_array_equal(BCE(x, True), BCE(x, f32(1, 1)))
    np.testing.assert_array_equal(losses.hinge_loss(x, -1), f32(0, 3))


def test_traced_hyperparameters():
    """They have derivatives and can be mapped over."""
    x = f32(0.5, 3.0)
    by_delta = jax.grad(lambda d: jnp.sum(losses.huber_loss(x, delta=d)))(2.0)
    np.testing.assert_allclose(by_delta, 1.0)
    both = jax.vmap(lambda g: FOCAL(x, 1, gamma=g))(f32(0, 2))
    np.testing.assert_allclose(both[0], BCE(x, 1), rtol=1e-6)


X, Y = np.random.default_rng(0).normal(size=(2, 3, 4))
P = scipy.special.softmax(Y, -1)

# A loss as a function of one of its numbers, and a value of this number.
NUMBERS = {
    "gamma": (lambda g: FOCAL(X, P, gamma=g), 1.5),
    "alpha": (lambda a: FOCAL(X, P, alpha=a), 0.3),
    "epsilon": (lambda e: losses.poly_loss_cross_entropy(X, P, epsilon=e), 0.7),
    "delta": (lambda d: losses.huber_loss(X, Y, delta=d), 0.4),
    "eps, similarity": (lambda e: losses.cosine_similarity(X, Y, eps=e), 9.0),
    "eps, distance": (lambda e: losses.cosine_distance(X, X + 0.1, eps=e), 9.0),
    "temperature": (lambda t: losses.ntxent(X, np.array([0, 0, 1]), t), 0.3),
    "degree": (lambda q: losses.triplet_margin_loss(X, Y, X + 1, norm_degree=q), 2.5),
    "eps, triplet": (lambda e: losses.triplet_margin_loss(X, Y, X + 1, eps=e), 2.0),
    "no eps": (lambda e: losses.triplet_margin_loss(X, Y, X + 1, eps=e), 0.0),
    "smooth": (lambda s: losses.binary_dice_loss(X, X > 0, smooth=s), 0.5),
    "alpha, dice": (lambda a: losses.dice_loss(X, P, alpha=a, axis=()), 0.2),
    "beta, dice": (lambda b: losses.dice_loss(X, P, beta=b, axis=()), 0.2),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_derivatives_by_numbers(name, x64):
    fn, value = NUMBERS[name]
    with x64():
        total = jax.jit(lambda x: jnp.sum(fn(x)))
        step = np.array([0, 1e-6]) if value == 0 else np.array([-1e-6, 1e-6])
        before, after = (float(total(jnp.asarray(value + s))) for s in step)
        slope = float(jax.jit(jax.grad(total))(jnp.asarray(value)))
    assert slope != 0
    difference = (after - before) / (step[1] - step[0])
    np.testing.assert_allclose(slope, difference, rtol=1e-4)


@pytest.mark.parametrize("loss", [KL, losses.generalized_kl_divergence])
def test_a_denormal_target_counts_as_zero(loss):
    """A CPU may compute minus infinity as its logarithm, and NaN as the loss."""
    q = jnp.full((4, 5), 0.2, jnp.bfloat16)
    log_p = jnp.log(q)

    @jax.jit
    def both(log_p, q):
        value, vjp = jax.vjp(loss, log_p, q)
        return value, vjp(jnp.ones_like(value))

    tiny, zero = both(log_p, q.at[0, 0].set(1e-40)), both(log_p, q.at[0, 0].set(0))
    for a, b in zip(jax.tree.leaves(tiny), jax.tree.leaves(zero), strict=True):
        assert jnp.isfinite(a).all() and jnp.array_equal(a, b)
