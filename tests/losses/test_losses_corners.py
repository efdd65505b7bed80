"""Where the textbook formula is infinite, or not a number."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.special

from eqopt import losses

from .test_losses_laws import loss_named


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


BCE = losses.sigmoid_binary_cross_entropy
FOCAL = losses.sigmoid_focal_loss
CE = losses.softmax_cross_entropy
KL = losses.kl_divergence
INTEGER = losses.softmax_cross_entropy_with_integer_labels
NO = np.zeros(2, bool)
HALF = np.array([True, False])
HOT = np.eye(2)[None]  # the classes of two pixels
NO_CLASS = jnp.zeros((1, 2, 2)).at[..., 1].set(-INF)  # the second one is nowhere
SURE = f32(INF, 0, -INF, 0).reshape(1, 2, 2)
NOTHING = jnp.zeros((1, 2, 2))
NO_TARGETS = {"targets": NOTHING, "smooth": 0.0}
FRAME = {"logit_paddings": np.zeros((1, 1)), "label_paddings": np.zeros((1, 1))}

# The loss, its floating arguments, the others, and the value that it must have.
NAN_IN_OPTAX = [
    ("softmax_cross_entropy", [f32(0, -INF), f32(1, 0)], {}, 0),
    ("softmax_cross_entropy", [f32(0, 1), f32(1, 0)], {"where": HALF}, 0),
    ("poly_loss_cross_entropy", [f32(0, -INF), f32(1, 0)], {}, 0),
    ("sigmoid_binary_cross_entropy", [f32(INF, -INF), f32(1, 0)], {}, 0),
    ("sigmoid_focal_loss", [f32(INF, -INF), f32(1, 0)], {}, 0),
    ("kl_divergence", [f32(-INF, 0), f32(0, 1)], {}, 0),
    ("generalized_kl_divergence", [f32(-INF, 0), f32(0, 0)], {}, 1),
    ("kl_divergence_with_log_targets", [f32(-1, 0), f32(-INF, 0)], {}, 0),
    ("cosine_similarity", [f32(0, 0), f32(1, 2)], {}, 0),
    ("ntxent", [jnp.eye(3)], {"labels": np.arange(3)}, 0),
    ("triplet_margin_loss", [f32(0, 0), f32(1, 1), f32(-1, -1)], {"norm_degree": 3}, 1),
    ("dice_loss", [NO_CLASS], {"targets": HOT * [1, 0], "smooth": 0.0}, 1 / 6),
]
CORNERS = [
    # Vectors without a length, or whose squares overflow or underflow.
    ("cosine_similarity", [f32(1, NAN), f32(1, 2)], {"where": NO}, 0),
    ("cosine_distance", [f32(0, 0), f32(0, 0)], {}, 1),
    ("cosine_similarity", [f32(1e30, 0), f32(1e30, 1e30)], {}, 0.5**0.5),
    ("cosine_similarity", [f32(1e-30, 0), f32(1e-30, 1e-30)], {}, 0.5**0.5),
    ("ntxent", [jnp.eye(3)], {"labels": np.zeros(3)}, 0),
    ("ntxent", [jnp.zeros((3, 2))], {"labels": np.array([0, 0, 1])}, np.log(2)),
    ("triplet_margin_loss", [f32(0, 1)] * 3, {"eps": 0.0}, 1),
    ("triplet_margin_loss", [f32(0, 1)] * 3, {"norm_degree": 1.5}, 1),
    ("log_cosh", [f32(1e30, -1e30)], {}, 1e30),
    ("huber_loss", [f32(1e30, -1e30)], {}, 1e30),
    # Sure and right.
    ("sigmoid_focal_loss", [f32(INF, -INF), f32(1, 0)], {"gamma": 0.0}, 0),
    ("sigmoid_focal_loss", [f32(300, -300), f32(1, 0)], {"gamma": 0.5}, 0),
    ("softmax_cross_entropy", [f32(INF, 0, -INF), f32(1, 0, 0)], {}, 0),
    ("poly_loss_cross_entropy", [f32(INF, 0), f32(1, 0)], {}, 0),
    ("softmax_cross_entropy_with_integer_labels", [f32(INF, 0)], {"labels": 0}, 0),
    ("multiclass_hinge_loss", [f32(INF, 0)], {"labels": 0}, 0),
    ("multiclass_sparsemax_loss", [f32(INF, 0, -INF)], {"labels": 0}, 0),
    ("sparsemax_loss", [f32(INF, -INF)], {"labels": np.array([1, 0])}, 0),
    ("sparsemax_loss", [f32(1e30)], {"labels": 1}, 0),
    ("dice_loss", [SURE], {"targets": HOT}, 0),
    ("multiclass_generalized_dice_loss", [SURE], {"targets": HOT}, 0),
    ("binary_dice_loss", [f32(INF, -INF)[None]], {"targets": HOT[0, :1]}, 0),
    (
        "ctc_loss",
        [f32(0, INF)[None, None]],
        FRAME | {"labels": np.ones((1, 1), int)},
        0,
    ),
    # Impossible classes.
    ("softmax_cross_entropy", [f32(0, 0, -INF), f32(1, 0, 0)], {}, np.log(2)),
    ("poly_loss_cross_entropy", [f32(0, 0, -INF), f32(1, 0, 0)], {}, np.log(2) + 1),
    (INTEGER.__name__, [f32(0, 0, -INF)], {"labels": 0}, np.log(2)),
    ("make_fenchel_young_loss", [f32(0, 0, -INF), f32(1, 0, 0)], {}, np.log(2)),
    ("ranking_softmax_loss", [f32(0, -INF), f32(1, 0)], {}, 0),
    ("multiclass_hinge_loss", [f32(0, -INF)], {"labels": 0}, 0),
    ("multiclass_sparsemax_loss", [f32(0, 0, -INF)], {"labels": 0}, 0.25),
    ("kl_divergence_with_log_targets", [f32(-INF, 0), f32(-INF, 0)], {}, 0),
    # Nothing to sum over: also where it is masked.
    ("softmax_cross_entropy", [f32(1, 2), f32(0, 0)], {}, 0),
    ("softmax_cross_entropy", [f32(NAN, INF), f32(NAN, 1)], {"where": NO}, 0),
    (INTEGER.__name__, [f32(NAN, INF)], {"labels": -1, "where": NO}, 0),
    ("poly_loss_cross_entropy", [f32(NAN, INF), f32(NAN, 1)], {"where": NO}, 0),
    ("kl_divergence", [f32(NAN, 0), f32(NAN, 1)], {"where": NO}, 0),
    ("generalized_kl_divergence", [f32(NAN, 0), f32(NAN, 1)], {"where": NO}, 0),
    ("ranking_softmax_loss", [f32(NAN, 0), f32(0, NAN)], {"where": NO}, 0),
    ("smooth_labels", [f32(1, 0)], {"alpha": 0.1, "where": NO}, 0),
    ("dice_loss", [NOTHING], NO_TARGETS | {"apply_softmax": False}, 0),
    ("multiclass_generalized_dice_loss", [NOTHING], NO_TARGETS, 1),
]


def ids(rows):
    return [f"{i}-{row[0]}" for i, row in enumerate(rows)]


@pytest.mark.parametrize("name, floats, rest, expected", CORNERS, ids=ids(CORNERS))
@pytest.mark.slow
def test_finite(name, floats, rest, expected):
    value, grads = value_and_grads(lambda *x: loss_named(name)(*x, **rest), *floats)
    np.testing.assert_allclose(value, np.full(value.shape, expected), 1e-6, 1e-6)
    assert all(jnp.all(jnp.isfinite(grad)) for grad in grads)


@pytest.mark.parametrize(
    "name, floats, rest, expected", NAN_IN_OPTAX, ids=ids(NAN_IN_OPTAX)
)
@pytest.mark.costly
def test_nan_in_optax(name, floats, rest, expected, standard_promotion):
    test_finite(name, floats, rest, expected)
    rest = {k: jnp.asarray(x) for k, x in rest.items() if np.ndim(x)} | {
        k: x for k, x in rest.items() if not np.ndim(x)
    }
    theirs = getattr(optax.losses, name)
    value, grads = value_and_grads(lambda *x: theirs(*x, **rest), *floats)
    assert not all(jnp.all(jnp.isfinite(x)) for x in (value, *grads))


@pytest.mark.parametrize(
    "name, floats, rest",
    [
        ("softmax_cross_entropy", [f32(INF, 0), f32(0, 1)], {}),
        ("softmax_cross_entropy_with_integer_labels", [f32(INF, 0)], {"labels": 1}),
        ("ranking_softmax_loss", [f32(INF, 0), f32(0, 1)], {}),
        ("multiclass_perceptron_loss", [f32(INF, 0)], {"labels": 1}),
    ],
)
@pytest.mark.slow
def test_sure_and_wrong_is_infinite(name, floats, rest):
    assert loss_named(name)(*floats, **rest) == INF


@pytest.mark.parametrize(
    "fn",
    [
        INTEGER,
        losses.multiclass_hinge_loss,
        losses.multiclass_perceptron_loss,
        losses.multiclass_sparsemax_loss,
    ],
)
@pytest.mark.parametrize("label", [-1, 3])
@pytest.mark.slow
def test_label_out_of_range_is_nan_and_has_no_gradient(fn, label):
    x = jnp.arange(6.0).reshape(2, 3)
    labels = np.array([label, 1], np.int8)
    loss, (grad,) = value_and_grads(lambda x: fn(x, labels), x)
    np.testing.assert_array_equal(jnp.isnan(loss), [True, False])
    np.testing.assert_array_equal(grad[0], 0)
    assert jnp.all(jnp.isfinite(grad[1])) and jnp.any(grad[1] != 0)


def test_masked_labels_may_be_anything():
    x = jnp.arange(6.0).reshape(2, 3)
    labels = np.array([-100, 1])
    fn = lambda x: INTEGER(x, labels, where=labels >= 0)
    loss, (grad,) = value_and_grads(fn, x)
    assert loss[0] == 0 and jnp.all(grad[0] == 0)
    np.testing.assert_allclose(loss[1], INTEGER(x[1], 1), rtol=1e-6)


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
@pytest.mark.slow
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
