"""Models, and bounds and normals that are trees; extreme numbers; scales of zero."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import eqopt
from eqopt import projections


SCALED = ["hypercube", "l1_ball", "l1_sphere", "l2_ball", "l2_sphere", "linf_ball"]
SCALED.append("simplex")


def _model():
    return eqx.nn.MLP(2, 3, 4, 1, use_final_bias=False, key=jax.random.key(0))


def _arrays(tree):
    return eqx.filter(tree, eqx.is_inexact_array)


def test_bounds_are_trees_or_prefixes():
    model = _model()
    arrays = _arrays(model)
    above = jax.tree.map(lambda x: x + 0.5, arrays)
    out = projections.box(model, above, None)
    assert eqx.tree_equal(_arrays(out), above)
    assert eqx.tree_equal(projections.box(model, None, above), model)

    tree = {"w": jnp.array([[-3.0, 3.0], [0.5, 2.0]]), "b": jnp.array([5.0])}
    out = projections.box(tree, {"w": 0, "b": None}, {"w": jnp.array([1, 2]), "b": 4.0})
    np.testing.assert_array_equal(out["w"], [[0.0, 2.0], [0.5, 2.0]])
    np.testing.assert_array_equal(out["b"], [4.0])
    out = projections.hypercube(tree, {"w": 2, "b": 0.25})
    np.testing.assert_array_equal(out["w"], [[0.0, 2.0], [0.5, 2.0]])
    np.testing.assert_array_equal(out["b"], [0.25])


@pytest.mark.slow
def test_normals_are_trees():
    x = {"w": jnp.array([1.0, 2.0]), "b": jnp.array(3.0), "f": jax.nn.relu}
    a = {"w": jnp.array([0.0, 2.0]), "b": 1.0, "f": None}
    flat, normal = jnp.array([1.0, 2.0, 3.0]), jnp.array([0.0, 2.0, 1.0])
    for name, more in (("vector", ()), ("hyperplane", (0.5,)), ("halfspace", (0.5,))):
        fn = getattr(projections, name)
        out = fn(x, a, *more)
        joined = jnp.append(out["w"], out["b"])
        np.testing.assert_allclose(joined, fn(flat, normal, *more), rtol=1e-6)
        assert out["f"] is jax.nn.relu
    # A part of the model alone: `None` is zeros.
    out = projections.hyperplane(x, {"w": None, "b": 2.0, "f": None}, 1.0)
    np.testing.assert_array_equal(out["w"], x["w"])
    assert out["b"] == 0.5
    out = projections.vector(x, {"w": None, "b": 2.0, "f": None})
    np.testing.assert_array_equal(out["w"], [0.0, 0.0])
    model = _model()
    assert eqx.tree_equal(projections.vector(model, model), model, rtol=1e-5)


@pytest.mark.slow
def test_a_normal_of_zero():
    x, a = jnp.array([1.0, 2.0]), jnp.zeros(2)
    for fn in (projections.hyperplane, projections.halfspace):
        np.testing.assert_array_equal(fn(x, a, 1.0), x)
        for argnum in range(2):
            slope = jax.grad(lambda *xa, fn=fn: jnp.sum(fn(*xa, 1.0)), argnum)(x, a)
            assert np.isfinite(slope).all()
    np.testing.assert_array_equal(projections.vector(x, a), a)
    for slope in jax.jacobian(projections.vector, (0, 1))(x, a):
        assert np.isfinite(slope).all()


@pytest.mark.parametrize("name", SCALED)
@pytest.mark.costly
def test_a_scale_of_zero(name):
    for x in (jnp.array([3.0, -2.0]), jnp.zeros(2)):
        fn = getattr(projections, name)
        np.testing.assert_array_equal(fn(x, 0), [0.0, 0.0])
        for slope in jax.jacobian(fn, (0, 1))(x, 0.0):
            assert np.isfinite(slope).all()


@pytest.mark.parametrize("kind", [np.uint8, np.float64, jnp.bfloat16])
@pytest.mark.costly
def test_numbers_of_any_dtype(kind):
    """Also unsigned ones, which have no negative."""
    x, three = jnp.array([-5.0, 0.5, 4.0]), kind(3)
    for name in SCALED:
        fn = getattr(projections, name)
        np.testing.assert_array_equal(fn(x, three), fn(x, 3.0))
    box = projections.box
    np.testing.assert_array_equal(box(x, kind(1), three), box(x, 1.0, 3.0))
    a = jnp.array([1.0, 2.0, 0.0])
    narrow = np.asarray(a).astype(kind(0).dtype)
    for fn in (projections.hyperplane, projections.halfspace):
        np.testing.assert_array_equal(fn(x, narrow, three), fn(x, a, 3.0))


@pytest.mark.parametrize("name", SCALED)
@pytest.mark.slow
def test_scales_are_data(name):
    x = jnp.array([0.3, -2.0, 4.0])
    fn = getattr(projections, name)
    scales = jnp.array([0.5, 1.0, 2.0])
    mapped = jax.jit(jax.vmap(lambda s: fn(x, s)))(scales)
    np.testing.assert_allclose(mapped, [fn(x, float(s)) for s in scales], rtol=1e-6)
    slope = jax.grad(lambda s: jnp.sum(fn(x, s) ** 2))(1.0)
    up, down = (jnp.sum(fn(x, s) ** 2) for s in (1.01, 0.99))
    np.testing.assert_allclose(slope, (up - down) / 0.02, rtol=1e-3)


def test_zero_has_a_nearest_point_on_spheres():
    for fn, norm in ((projections.l1_sphere, 1), (projections.l2_sphere, 2)):
        zeros = {"w": jnp.zeros((2, 2)), "b": jnp.zeros(3)}
        out = fn(zeros, 2.0)
        np.testing.assert_allclose(eqopt.tree.norm(out, norm), 2.0, rtol=1e-6)
        assert out["w"][0, 0] == out["b"][0] > 0


def test_zeros_can_move_on_the_l1_sphere(standard_promotion):
    x = jnp.array([0.0, 0.1, 0.0])
    np.testing.assert_allclose(projections.l1_sphere(x), [0.3, 0.4, 0.3], rtol=1e-6)
    theirs = optax.projections.projection_l1_sphere(x)
    np.testing.assert_allclose(theirs, [0.0, 0.4, 0.0], rtol=1e-6)  # not on it


def test_no_square_overflows():
    for size in (1e-25, 1e25, 3e38):
        x = jnp.array([size, -size])
        unit = jnp.array([0.5, -0.5]) * 2**0.5
        np.testing.assert_allclose(projections.l2_sphere(x), unit, rtol=1e-6)
        if size > 1:
            np.testing.assert_allclose(projections.l2_ball(x), unit, rtol=1e-6)
        else:
            np.testing.assert_array_equal(projections.l2_ball(x), x)
        np.testing.assert_allclose(projections.vector(unit, x), unit, rtol=1e-6)
        flat = projections.hyperplane(unit, x, 0.0)
        np.testing.assert_allclose(flat, [0.0, 0.0], atol=1e-6)


@pytest.mark.slow
def test_no_digits_are_lost_in_sums(standard_promotion):
    x = jnp.array([1e7, 1e7 + 1])
    np.testing.assert_array_equal(projections.simplex(x), [0.0, 1.0])
    assert optax.projections.projection_simplex(x).sum() == 2
    many = 30 * jax.random.normal(jax.random.key(0), (20000,))
    for scale in (1, 100.0, 1e4):
        total = np.sum(np.asarray(projections.simplex(many, scale), float))
        np.testing.assert_allclose(total, scale, rtol=1e-5)


def test_complex_arrays_in_euclidean_balls():
    z = {"z": jnp.array([3 + 4j, 0]), "x": jnp.array([12.0])}
    out = projections.l2_sphere(z, 1.3)
    np.testing.assert_allclose(out["z"], [0.3 + 0.4j, 0], rtol=1e-6)
    np.testing.assert_allclose(out["x"], [1.2], rtol=1e-6)
    assert eqx.tree_equal(projections.l2_ball(z, 13.1), z)
    assert out["z"].dtype == jnp.complex64


def test_nothing_is_joined():
    """The simplex takes temporary memory for a few copies, but not for a sort."""
    leaves = [jax.ShapeDtypeStruct((1000,), jnp.float32)] * 4
    compiled = jax.jit(projections.simplex).lower(leaves).compile()
    assert "sort" not in compiled.as_text()
    assert "concatenate(" not in compiled.as_text().replace("f32[4]", "")
