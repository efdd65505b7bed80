"""Differences from Optax that "Coming from Optax" describes, asserted on both sides."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from eqopt import losses


INF, NAN = np.inf, np.nan
pytestmark = pytest.mark.usefixtures("standard_promotion")


def f32(*values):
    return jnp.array(values, jnp.float32)


@pytest.mark.parametrize(
    "name", ["huber_loss", "log_cosh", "sigmoid_binary_cross_entropy", "hinge_loss"]
)
def test_shapes_that_do_not_fit(name):
    x, y = jnp.ones((4, 1)), jnp.ones(4)
    assert getattr(optax.losses, name)(x, y).shape == (4, 4)
    with pytest.raises(ValueError, match="Nothing is broadcast"):
        getattr(losses, name)(x, y)


NO_CLASS = jnp.zeros((1, 2, 2)).at[..., 1].set(-INF)  # the second one is nowhere

# Name, floating arguments, others: a value or derivative of Optax is NaN here.
NANS = [
    ("softmax_cross_entropy", [f32(0, -INF), f32(1, 0)], {}),
    ("softmax_cross_entropy", [f32(0, 1), f32(1, 0)], {"where": np.array([True, False])}),
    ("poly_loss_cross_entropy", [f32(0, -INF), f32(1, 0)], {}),
    ("sigmoid_binary_cross_entropy", [f32(INF), f32(1)], {}),
    ("sigmoid_focal_loss", [f32(INF), f32(1)], {}),
    ("kl_divergence", [f32(-INF, 0), f32(0, 1)], {}),
    ("generalized_kl_divergence", [f32(-INF, 0), f32(0, 1)], {}),
    ("kl_divergence_with_log_targets", [f32(-1, 0), f32(-INF, 0)], {}),
    ("cosine_similarity", [f32(0, 0), f32(1, 0)], {}),
    ("cosine_similarity", [f32(1e30, 0), f32(1e30, 0)], {}),
    ("ntxent", [jnp.eye(3)], {"labels": np.arange(3)}),
    ("triplet_margin_loss", [f32(0, 0), f32(1, 1), f32(-1, -1)], {"norm_degree": 3}),
    ("dice_loss", [NO_CLASS], {"targets": np.eye(2)[None] * [1, 0], "smooth": 0.0}),
]  # fmt: skip


@pytest.mark.parametrize("name, floats, rest", NANS, ids=[x[0] for x in NANS])
@pytest.mark.costly
def test_nan(name, floats, rest):
    def of(module):
        rests = {
            k: jnp.asarray(v) for k, v in rest.items() if np.ndim(v) or k == "labels"
        }
        fn = lambda *x: getattr(module, name)(*x, **(rest | rests))

        @jax.jit
        def value_and_grads(*floats):
            value, vjp = jax.vjp(fn, *floats)
            return [value, *vjp(jnp.ones_like(value))]

        return value_and_grads(*floats)

    assert all(bool(jnp.all(jnp.isfinite(x))) for x in of(losses))
    is_finite = [bool(jnp.all(jnp.isfinite(x))) for x in of(optax.losses)]
    cosine = name == "cosine_similarity" and floats[0][0] > 1  # overflows to 0
    assert not all(is_finite) or (cosine and of(optax.losses)[0] == 0)


def test_labels_out_of_range():
    x = f32(1, 2, 4)
    theirs = optax.softmax_cross_entropy_with_integer_labels
    assert theirs(x, jnp.array(-1)) == theirs(x, jnp.array(2))
    assert jnp.isnan(losses.softmax_cross_entropy_with_integer_labels(x, -1))
    assert optax.losses.multiclass_perceptron_loss(x, jnp.array(3)) == 4
    assert jnp.isnan(losses.multiclass_perceptron_loss(x, 3))


def test_log_cosh_of_small_errors():
    assert optax.log_cosh(f32(1e-4))[0] != pytest.approx(5e-9, rel=0.5)
    assert losses.log_cosh(f32(1e-4))[0] == pytest.approx(5e-9, rel=1e-5)


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
    soft = lambda s, t: t * jax.nn.logsumexp(s / t)
    args = jnp.ones((2, 3)), jnp.zeros((2, 3)), jnp.float32(2)
    with pytest.raises(TypeError):
        optax.losses.make_fenchel_young_loss(soft)(*args)
    assert losses.make_fenchel_young_loss(soft)(*args).shape == (2,)


def test_dtype_is_that_of_the_logits():
    x, y = jnp.ones((2, 3), jnp.bfloat16), jnp.ones((2, 3)) / 3
    assert optax.softmax_cross_entropy(x, y).dtype == jnp.float32
    assert losses.softmax_cross_entropy(x, y).dtype == jnp.bfloat16
    assert losses.softmax_cross_entropy(x.astype(jnp.float32), y).dtype == jnp.float32
