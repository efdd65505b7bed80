"""The laws of `eqopt.tree`: whole models, dtypes, transformations of JAX."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

import eqopt


SLOW = pytest.mark.slow
tree = eqopt.tree
BINARY = {
    "add": tree.add,
    "sub": tree.sub,
    "mul": tree.mul,
    "div": tree.div,
    "add_scale": lambda x, y: tree.add_scale(x, -0.1, y),
}
ARITHMETIC = BINARY | {
    "bias_correction": lambda x, y: tree.bias_correction(x, 0.9, 2),
    "clip": lambda x, y: tree.clip(x, -0.1, jnp.asarray(0.1)),
    "conj": lambda x, y: tree.conj(x),
    "real": lambda x, y: tree.real(x),
    "scale": lambda x, y: tree.scale(jnp.asarray(2), x),
    "update_infinity_moment": lambda x, y: tree.update_infinity_moment(y, x, 0.9, 1e-8),
    "update_moment": lambda x, y: tree.update_moment(y, x, jnp.asarray(0.9), 2),
    "update_moment_per_elem_norm": lambda x, y: tree.update_moment_per_elem_norm(
        y, x, 0.9, 1
    ),
    "where": lambda x, y: tree.where(jnp.asarray(True), y, x),
}
REDUCTIONS = {
    "allclose": tree.allclose,
    "max": lambda x, y: tree.max(x),
    "min": lambda x, y: tree.min(x),
    "sum": lambda x, y: tree.sum(x),
    "vdot": tree.vdot,
}
LIKE = {
    "full_like": lambda x: tree.full_like(x, jnp.asarray(0.5)),
    "ones_like": tree.ones_like,
    "random_like": lambda x: tree.random_like(0, x),
    "zeros_like": tree.zeros_like,
}


class Model(eqx.Module):
    """A model with all kinds of leaves that are not parameters."""

    linear: eqx.nn.Linear
    scale: jax.Array
    count: jax.Array
    numpy: np.ndarray
    activation: object = jnp.tanh
    rate: float = 0.5
    nothing: None = None
    name: str = eqx.field(static=True, default="model")


def model_of(seed=0, dtype=jnp.float32):
    key = jr.key(seed)
    linear = eqx.nn.Linear(2, 3, key=key, dtype=dtype)
    scale = (1 + jr.uniform(key, ())).astype(dtype)
    return Model(linear, scale, jnp.arange(2), np.ones(2))


def arrays(x):
    return eqx.filter(x, eqx.is_inexact_array)


@pytest.mark.parametrize("name", ARITHMETIC)
@pytest.mark.costly
def test_models_stay_models(name):
    """Also if one of the two trees has only the arrays, as gradients do."""
    x, y = model_of(0), model_of(1)
    fn = ARITHMETIC[name]
    out = fn(arrays(x), y) if name == "where" else fn(x, arrays(y))
    assert jax.tree.structure(out) == jax.tree.structure(x)
    assert out.activation is jnp.tanh
    assert out.rate == 0.5
    assert out.count is (y if name == "where" else x).count
    of_arrays = fn(arrays(x), arrays(y))
    assert of_arrays.activation is None
    assert isinstance(out.numpy, jax.Array) or name in ("conj", "real", "vdot")
    assert eqx.tree_equal(arrays(out), of_arrays)


@pytest.mark.parametrize("name", LIKE)
def test_all_else_is_none(name):
    model = model_of()
    out = LIKE[name](model)
    assert jax.tree.structure(out) == jax.tree.structure(arrays(model))
    abstract = eqx.filter_eval_shape(lambda: model)
    again = LIKE[name](abstract)
    assert eqx.tree_equal(out, again)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "complex64"])
@pytest.mark.parametrize("other", [pytest.param("bfloat16", marks=SLOW), "float32"])
def test_dtypes_are_those_of_the_first_tree(dtype, other, x64):
    """Also with 64 bits turned on, and with numbers of 64 bits."""
    with x64():
        x = {"x": jnp.ones((2, 2), dtype)}
        y = {"x": jnp.full((2, 2), 0.5, other)}
        fns = {k: v for k, v in ARITHMETIC.items() if k not in ("real", "where")}
        if dtype == "complex64":
            del fns["update_infinity_moment"]
        for scalar in (2, 2.0, jnp.asarray(2.0), np.float64(2), jnp.int8(2)):
            of = type(scalar).__name__
            fns[f"scale, {of}"] = lambda x, y, s=scalar: tree.scale(s, x)
            fns[f"add_scale, {of}"] = lambda x, y, s=scalar: tree.add_scale(x, s, y)
            fns[f"full_like, {of}"] = lambda x, y, s=scalar: tree.full_like(x, s)
        fns |= {name: lambda x, y, fn=fn: fn(x) for name, fn in LIKE.items()}
        for name, fn in fns.items():
            assert jax.eval_shape(fn, x, y)["x"].dtype == dtype, name
        wide = eqopt.numerics.common_dtype(dtype, "float32")
        for fn in (tree.sum, lambda x: tree.vdot(x, x)):
            assert jax.eval_shape(fn, x).dtype == wide
        real = jnp.finfo(dtype).dtype
        assert jax.eval_shape(tree.real, x)["x"].dtype == real


def test_one_rounding():
    """2^-9 is lost on 1 in bfloat16; three of them, added first, are not."""
    one = {"x": jnp.ones(2, jnp.bfloat16)}
    small = {"x": jnp.full(2, 2.0**-9, jnp.bfloat16)}
    assert (tree.add(one, small)["x"] == 1).all()
    assert (tree.add(one, small, small, small)["x"] == 1 + 2.0**-7).all()
    assert (tree.add_scale(one, 3, small)["x"] == 1 + 2.0**-7).all()


def test_reductions_of_half_precision():
    many = {"x": jnp.full(5000, 100, jnp.float16), "y": jnp.full(3, 3e4, jnp.bfloat16)}
    exact = 5e5 + 3 * float(many["y"][0])
    np.testing.assert_allclose(tree.sum(many), exact, rtol=1e-6)
    exact = 5e7 + 3 * float(many["y"][0]) ** 2
    np.testing.assert_allclose(tree.vdot(many, many), exact, rtol=1e-6)
    assert tree.max(many).dtype == jnp.float32


def test_complex_numbers():
    x = {"z": jnp.array([1 + 2j, 3j]), "x": jnp.array([2.0])}
    y = {"z": jnp.array([1j, 1 + 1j]), "x": jnp.array([5.0])}
    np.testing.assert_allclose(tree.vdot(x, y), (1 - 2j) * 1j - 3j * (1 + 1j) + 10)
    np.testing.assert_allclose(tree.vdot(y, x), np.conj(tree.vdot(x, y)))
    np.testing.assert_allclose(tree.sum(x), 3 + 5j)
    assert tree.size(x) == 3
    clipped = tree.clip(x, -1, 1)
    np.testing.assert_array_equal(clipped["z"], [1 + 1j, 1j])
    np.testing.assert_array_equal(tree.scale(1j, {"z": x["z"]})["z"], [-2 + 1j, -3])
    np.testing.assert_array_equal(tree.conj(x)["z"], [1 - 2j, -3j])
    half = tree.cast(x, jnp.bfloat16)
    assert (half["z"].dtype, half["x"].dtype) == (jnp.complex64, jnp.bfloat16)
    real_moments = tree.update_moment_per_elem_norm(
        x, {"z": jnp.zeros(2), "x": jnp.zeros(1)}, 0.5, 2
    )
    np.testing.assert_allclose(real_moments["z"], [2.5, 4.5])
    largest = tree.update_infinity_moment(x, tree.zeros_like(tree.real(x)), 0.5, 0)
    np.testing.assert_allclose(largest["z"], [5**0.5, 3])


@pytest.mark.parametrize("size", [3, 100_000])
@pytest.mark.parametrize("fn", [tree.max, tree.min, tree.sum])
def test_nan_propagates(fn, size):
    x = jnp.ones(size).at[1].set(jnp.nan)
    assert jnp.isnan(fn({"x": x, "y": jnp.ones(2)}))
    assert jnp.isnan(jax.jit(fn)({"y": jnp.ones(2, jnp.float16), "x": x}))


def test_extremes():
    x = {
        "x": jnp.array([1.0, -jnp.inf]),
        "y": jnp.array(jnp.inf),
        "e": jnp.zeros((0, 2)),
    }
    assert (tree.min(x), tree.max(x)) == (-jnp.inf, jnp.inf)
    assert (tree.min({"e": x["e"]}), tree.max(None)) == (jnp.inf, -jnp.inf)
    assert jnp.isnan(tree.clip({"x": jnp.array(jnp.nan)}, -1, 1)["x"])
    assert not tree.allclose({"x": jnp.array(jnp.nan)}, {"x": jnp.array(jnp.nan)})
    assert tree.allclose([jnp.array(jnp.nan)], [jnp.array(jnp.nan)], equal_nan=True)


def test_sizes_do_not_overflow():
    large = jax.ShapeDtypeStruct((2**20, 2**20), jnp.bfloat16)
    size = tree.size([large] * 5)
    assert size == 5 * 2**40
    assert type(size) is int
    assert tree.size(model_of()) == 12


def test_chosen_not_multiplied():
    """A NaN in the tree that is not chosen leaves no trace."""
    x, y = {"x": jnp.ones(2)}, {"x": jnp.full(2, jnp.nan)}
    assert (tree.where(True, x, y)["x"] == 1).all()
    assert (jax.jit(tree.where)(False, y, x)["x"] == 1).all()


@pytest.mark.slow
def test_jit_and_vmap():
    """One program for all values, and along an axis what it is for each."""
    fns = ARITHMETIC | REDUCTIONS
    all_of_them = lambda x, y: {name: fn(x, y) for name, fn in fns.items()}
    one = {"x": jnp.ones(2), "n": None}
    pairs = [({"x": jnp.arange(2.0) - i, "n": None}, one) for i in range(2)]
    stacked = jax.tree.map(lambda *xs: jnp.stack(xs), *pairs)
    out = jax.jit(jax.vmap(all_of_them))(*stacked)
    for i in range(2):
        found = jax.tree.map(lambda x, i=i: x[i], out)
        expected = all_of_them(*pairs[i])
        assert eqx.tree_equal(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_random_under_jit_and_vmap():
    target = {"x": jnp.ones((3, 2)), "y": jnp.ones(2, jnp.bfloat16)}
    expected = tree.random_like(1, target)
    assert eqx.tree_equal(jax.jit(lambda t: tree.random_like(1, t))(target), expected)
    keys = jr.split(jr.key(0), 2)
    mapped = jax.vmap(tree.random_like, (0, None))(keys, target)
    again = tree.random_like(keys[1], target)
    assert eqx.tree_equal(jax.tree.map(lambda x: x[1], mapped), again)
    twice = jax.tree.map(lambda x: jnp.stack([x, x]), target)
    both = jax.vmap(lambda t: tree.random_like(keys[1], t))(twice)
    assert eqx.tree_equal(jax.tree.map(lambda x: x[0], both), again)


def test_random_numbers_of_one_array_do_not_depend_on_the_others():
    small, large = ({"x": jnp.ones(n), "y": jnp.ones(3)} for n in (1, 7))
    one, other = (tree.random_like(0, x) for x in (small, large))
    assert eqx.tree_equal(one["y"], other["y"])
    keys = tree.unwrap_random_key_data(tree.split_key_like(0, small))
    assert (keys["x"] != keys["y"]).any()


@pytest.mark.parametrize("name", BINARY)
def test_derivatives(name):
    x, y = jnp.array([0.5, -2.0]), jnp.array([1.5, 0.25])
    total = lambda x, y: tree.sum(BINARY[name]({"x": x}, {"x": y}))
    for i, slope in enumerate(jax.grad(total, (0, 1))(x, y)):
        step = 1e-2 * jnp.array([1.0, 0.0])
        up, down = (total(*((x + h, y), (x, y + h))[i]) for h in (step, -step))
        np.testing.assert_allclose(slope[0], (up - down) / 2e-2, rtol=1e-3)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.costly
def test_derivatives_of_moments_at_zero(order, dtype):
    moment = lambda g: tree.sum(
        tree.update_moment_per_elem_norm(g, jnp.zeros(2), 0.5, order)
    )
    slope = jax.grad(moment)(jnp.zeros(2, dtype))
    assert jnp.isfinite(slope).all()


@pytest.mark.slow
def test_derivatives_of_reductions():
    x = {"x": jnp.array([1.0, 3.0, 2.0]), "y": jnp.array([-1.0])}
    assert jax.grad(tree.max)(x)["x"].tolist() == [0, 1, 0]
    assert jax.grad(tree.min)(x)["y"].tolist() == [1]
    assert jax.grad(lambda x: tree.vdot(x, x))(x)["x"].tolist() == [2, 6, 4]


def test_random_numbers_are_sharded_like_the_target():
    mesh = Mesh(np.array(jax.devices()), "d")
    x = jax.device_put(jnp.zeros(8), NamedSharding(mesh, P("d")))
    for fn in LIKE.values():
        for out in (fn([x]), jax.jit(fn)([x])):
            assert out[0].sharding.is_equivalent_to(x.sharding, 1)
            assert eqx.tree_equal(jnp.array(out[0]), fn([jnp.zeros(8)])[0])


def test_absent_values():
    """`None` in a further tree leaves the first one's array as it is."""
    x = {"x": jnp.array([2.0]), "y": jnp.array([3.0])}
    y = {"x": None, "y": jnp.array([5.0])}
    for name in BINARY:
        out = BINARY[name](x, y)
        assert out["x"] is x["x"]
        assert out["y"] != 3
    assert tree.add(x, y, x)["x"] == 4
    assert tree.vdot(x, y) == 15
    kept = tree.update_moment(y, x, 0.5, 1)
    assert (kept["x"], kept["y"]) == (2, 4)
    assert tree.cast_like(x, {"x": None, "y": jnp.float16(1)})["y"].dtype == jnp.float16


def test_cast_takes_abstract_arrays():
    abstract = eqx.filter_eval_shape(model_of)
    assert tree.cast(abstract, jnp.bfloat16).linear.weight.dtype == jnp.bfloat16
    assert tree.cast(abstract, jnp.bfloat16).count.dtype == jnp.int32
    batched = tree.batch_shape(abstract, (4,))
    assert batched.linear.weight.shape == (4, 3, 2)
    assert tree.cast_like(model_of(), abstract).scale.dtype == jnp.float32
    assert tree.dtype(abstract) == jnp.float32


def test_batches_of_models():
    model, x = model_of(), jnp.ones(2)
    models = tree.batch_shape(model, (3,))
    axis = lambda x: 0 if eqx.is_inexact_array(x) else None
    out = eqx.filter_vmap(lambda m: m.linear(x), in_axes=(axis,))(models)
    np.testing.assert_allclose(out, jnp.stack([model.linear(x)] * 3), rtol=1e-6)
