"""Where arithmetic on trees departs from Optax on purpose, asserted on both sides."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax
import pytest

import eqopt


pytestmark = pytest.mark.usefixtures("standard_promotion")
BOTH = eqopt.tree, optax.tree


def test_sums_in_half_precision():
    many = {"x": jnp.full(1000, 100, jnp.float16)}
    for name, arguments, exact in (("sum", [many], 1e5), ("vdot", [many] * 2, 1e7)):
        ours, theirs = (getattr(tree, name)(*arguments) for tree in BOTH)
        assert ours == exact
        assert ours.dtype == jnp.float32
        assert jnp.isinf(theirs)


def test_none_takes_a_key():
    """So the keys, and the noise, stay the same if a part of a model is frozen."""
    model = {"a": jnp.ones(2), "b": jnp.ones(3), "c": jnp.ones(())}
    part = model | {"b": None}
    for name in ("split_key_like", "random_like"):
        (ours, theirs), (ours_part, theirs_part) = (
            [getattr(tree, name)(jr.key(0), x) for tree in BOTH] for x in (model, part)
        )
        assert jnp.array_equal(ours["c"], theirs["c"])
        assert jnp.array_equal(ours["c"], ours_part["c"])
        assert not jnp.array_equal(theirs["c"], theirs_part["c"])
    perturbed = [
        module.make_perturbed_fun(lambda x: x["c"], num_samples=2)
        for module in (eqopt.perturbations, optax.perturbations)
    ]
    assert jnp.allclose(*(fun(jr.key(0), model) for fun in perturbed))
    assert not jnp.allclose(*(fun(jr.key(0), part) for fun in perturbed))


def test_a_nan_in_a_large_array():
    """XLA on a CPU passes over it in the extremes of more than a few numbers."""
    x = {"x": jnp.ones(100_000).at[1].set(jnp.nan)}
    for name in ("max", "min"):
        ours, theirs = (getattr(tree, name)(x) for tree in BOTH)
        assert jnp.isnan(ours)
        assert theirs == 1


def test_an_array_as_scalar_keeps_dtypes():
    x, by = {"x": jnp.ones(2, jnp.bfloat16)}, jnp.asarray(2.0, jnp.float32)
    for call in (
        lambda tree: tree.scale(by, x),
        lambda tree: tree.add_scale(x, by, x),
        lambda tree: tree.add(x, {"x": jnp.ones(2)}),
    ):
        ours, theirs = (call(tree)["x"].dtype for tree in BOTH)
        assert (ours, theirs) == (jnp.bfloat16, jnp.float32)


def test_moments_keep_dtypes():
    g, m = {"x": jnp.ones(2)}, {"x": jnp.zeros(2, jnp.bfloat16)}
    ours, theirs = (tree.update_moment(g, m, 0.9, 1)["x"].dtype for tree in BOTH)
    assert (ours, theirs) == (jnp.bfloat16, jnp.float32)


def test_moments_without_an_update_stay():
    g, m = {"x": None}, {"x": jnp.ones(2)}
    ours, theirs = (tree.update_moment(g, m, 0.9, 1)["x"] for tree in BOTH)
    assert ours is m["x"]
    assert theirs is None


@pytest.mark.slow
def test_odd_powers_of_the_modulus():
    """Real numbers have one, too; and at 0 there is a derivative."""
    power = lambda tree, g: tree.update_moment_per_elem_norm(g, jnp.zeros(()), 0.0, 1)
    ours, theirs = (power(tree, jnp.asarray(-2.0)) for tree in BOTH)
    assert (ours, theirs) == (2, -2)
    zero = jnp.zeros((), jnp.complex64)
    ours, theirs = (jax.grad(lambda g, t=tree: power(t, g))(zero) for tree in BOTH)
    assert jnp.isfinite(ours)
    assert not jnp.isfinite(theirs)


def test_nothing_is_broadcast():
    x, y = {"x": jnp.ones(3)}, {"x": jnp.ones((2, 1))}
    assert optax.tree.add(x, y)["x"].shape == (2, 3)
    assert optax.tree.where(jnp.ones(3, bool), x, y)["x"].shape == (2, 3)
    with pytest.raises(ValueError, match="broadcast"):
        eqopt.tree.add(x, y)


def test_nothing_is_added_where_there_is_none():
    x, y = {"x": jnp.ones(3)}, {"x": None}
    assert eqopt.tree.add(x, y)["x"] is x["x"]
    with pytest.raises((TypeError, ValueError)):
        optax.tree.add(x, y)


def test_whole_models_and_their_gradients():
    model = eqx.nn.MLP(2, 2, 2, 1, key=jr.key(0))
    grads = eqx.filter(model, eqx.is_inexact_array)
    assert eqopt.tree.sub(model, grads).activation is model.activation
    assert eqopt.tree.size(model) == 12
    for call in (lambda: optax.tree.sub(model, grads), lambda: optax.tree.norm(model)):
        with pytest.raises((AttributeError, TypeError, ValueError)):
            call()


def test_integers_are_no_parameters():
    x = {"count": jnp.asarray(2**24 + 1), "x": jnp.ones(3)}
    ours, theirs = (tree.cast(x, jnp.bfloat16)["count"] for tree in BOTH)
    assert ours == x["count"]
    assert float(theirs) == 2**24
    assert [tree.size(x) for tree in BOTH] == [3, 4]
    assert [tree.sum({"count": x["count"]}) for tree in BOTH] == [0, 2**24 + 1]


def test_python_numbers_do_not_count():
    alone = {"x": 3.0}
    assert optax.tree.norm(alone) == 3
    with pytest.raises(TypeError, match=r"jnp\.asarray\(3\.0, float\)"):
        eqopt.tree.norm(alone)
    x, y = ({"w": jnp.ones(1), "rate": rate} for rate in (1.0, 2.0))
    assert not optax.tree.allclose(x, y)
    with pytest.raises(ValueError, match="rate"):
        eqopt.tree.allclose(x, y)
    assert eqopt.tree.norm(x) == 1
    assert optax.tree.norm({"w": jnp.ones(1), "rate": 0.0}) == 1


def test_updates_of_integers():
    params, updates = {"n": jnp.asarray([5])}, {"n": jnp.asarray([-0.1])}
    assert optax.apply_updates(params, updates)["n"] == 4
    with pytest.raises(ValueError, match=r"int32.*astype\(jnp\.float32\)"):
        eqopt.apply_updates(params, updates)


def test_complex_numbers_are_clipped_by_parts():
    z = {"z": jnp.array([3 - 4j])}
    assert eqopt.tree.clip(z, -1, 1)["z"] == 1 - 1j
    with pytest.raises(ValueError, match="complex"):
        optax.tree.clip(z, -1, 1)


def test_a_real_dtype_for_complex_arrays():
    z = {"z": jnp.array([3 - 4j], jnp.complex64)}
    assert eqopt.tree.cast(z, jnp.float32)["z"].dtype == jnp.complex64
    with pytest.warns(DeprecationWarning, match="complex to real"):
        assert optax.tree.cast(z, jnp.float32)["z"].dtype == jnp.float32


def test_no_correction_before_the_first_step():
    x, count = {"x": jnp.zeros(2)}, jnp.asarray(0)
    assert jnp.isnan(optax.tree.bias_correction(x, 0.9, count)["x"]).all()
    with pytest.raises(ValueError, match="`count`"):
        eqopt.tree.bias_correction(x, 0.9, count)


def test_scalars_of_layers_do_not_stand_for_parameters():
    """A sharding with axes does not fit the scalar that NovoGrad keeps of a matrix."""
    params = {"w": jnp.ones((4, 2))}
    mark = lambda tree, opt: tree.map_params(
        opt, lambda _: "axes", opt.init(params), transform_non_params=lambda _: "none"
    )
    ours = mark(eqopt.tree, eqopt.ScaleByNovoGrad())
    theirs = mark(optax.tree, optax.scale_by_novograd())
    assert (ours.mu, ours.nu) == ({"w": "axes"}, {"w": "none"})
    assert (theirs.mu, theirs.nu) == ({"w": "axes"}, {"w": "axes"})


def test_averages_keep_their_dtype():
    new, old = jnp.ones(2), jnp.zeros(2, jnp.bfloat16)
    assert eqopt.incremental_update(new, old, 0.5).dtype == jnp.bfloat16
    assert optax.incremental_update(new, old, 0.5).dtype == jnp.float32


def test_safe_norms_in_half_precision():
    x = jnp.full(4, 300, jnp.float16)
    assert eqopt.numerics.safe_norm(x, 0.0) == 600
    assert eqopt.numerics.safe_root_mean_squares(x, 0.0) == 300
    assert jnp.isinf(optax.safe_norm(x, 0.0))
    assert jnp.isinf(optax.safe_root_mean_squares(x, 0.0))


def test_extremes_of_complex_numbers():
    x = {"x": jnp.asarray([1 + 2j, 3 - 1j])}
    assert optax.tree.max(x) == 3 - 1j
    assert optax.tree.min(x) == 1 + 2j
    for extreme in (eqopt.tree.max, eqopt.tree.min):
        with pytest.raises(TypeError, match=r"complex at `\['x'\]`"):
            extreme(x)
