"""The laws of `eqopt.tree`: whole models, dtypes, stored arrays, and what counts."""

import functools
import inspect

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

import eqopt
from eqopt import tree
from eqopt._trees.stored import is_stored, load
from eqopt.storage import BlockwiseQuantized


# Two trees. What is computed is like the first.
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
    "norm": lambda x, y: tree.norm(x),
    "sum": lambda x, y: tree.sum(x),
    "vdot": tree.vdot,
}
LIKE = {
    "full_like": lambda x: tree.full_like(x, jnp.asarray(0.5)),
    "ones_like": tree.ones_like,
    "random_like": lambda x: tree.random_like(0, x),
    "zeros_like": tree.zeros_like,
}
# Calls with one tree, which is also the second one where there are two.
COUNTING = {
    name: lambda x, fn=fn: fn(x, x) for name, fn in (ARITHMETIC | REDUCTIONS).items()
}
COUNTING |= {"size": tree.size}
# These say that everything else than arrays becomes `None`, or stays as it is.
OF_ANYTHING = LIKE | {
    "batch_shape": lambda x: tree.batch_shape(x, (2,)),
    "cast": lambda x: tree.cast(x, jnp.bfloat16),
    "cast_like": lambda x: tree.cast_like(x, x),
    "conj": COUNTING.pop("conj"),
    "dtype": tree.dtype,
    "real": COUNTING.pop("real"),
    "split_key_like": lambda x: tree.split_key_like(0, x),
}
CALLS = COUNTING | OF_ANYTHING

# They look at all leaves, or at none of a tree that a user makes up.
OTHERS = {"get", "get_all_with_path", "map_params", "nbytes", "set", "step_count"}
OTHERS |= {"metrics", "migrate", "migration_plan", "unwrap_random_key_data"}


def test_every_function_of_the_room_is_here():
    room = {name for name in dir(tree) if inspect.isfunction(getattr(tree, name))}
    assert room == set(CALLS) | OTHERS


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
    assert (out.activation, out.rate) == (jnp.tanh, 0.5)
    assert out.count is (y if name == "where" else x).count
    of_arrays = fn(arrays(x), arrays(y))
    assert of_arrays.activation is None
    assert isinstance(out.numpy, jax.Array) or name in ("conj", "real")
    assert eqx.tree_equal(arrays(out), of_arrays)


@pytest.mark.parametrize("name", LIKE)
def test_all_else_is_none(name):
    model = model_of()
    out = LIKE[name](model)
    assert jax.tree.structure(out) == jax.tree.structure(arrays(model))
    again = LIKE[name](eqx.filter_eval_shape(lambda: model))
    assert eqx.tree_equal(out, again)


@pytest.mark.parametrize("name", COUNTING)
def test_numbers_alone_are_an_error(name):
    expected = rf"^eqopt.tree.{name}: .*3\.0 .*`\[0\]\['a'\]`, but only arrays count"
    with pytest.raises(TypeError, match=expected):
        CALLS[name](({"a": 3.0},))


@pytest.mark.parametrize("name", CALLS)
def test_numbers_in_a_model_belong_to_the_model(name):
    for x in (eqx.nn.Dropout(0.5), {"a": None}, eqx.nn.Lambda(jnp.tanh)):
        CALLS[name](x)
    result = CALLS[name]({"w": jnp.ones(2), "layers": [eqx.nn.Dropout(0.5), 2]})
    if isinstance(result, dict):
        assert result["layers"][0].p in (0.5, None)


def test_numbers_that_differ_are_an_error():
    x, y = ({"w": jnp.ones(2), "rate": rate} for rate in (1.0, 2.0))
    with pytest.raises(ValueError, match=r"1\.0 of type float at `\['rate'\]`.*2\.0"):
        tree.add(x, y)
    tree.add(x, {**y, "rate": 1.0})


@pytest.mark.parametrize("name", CALLS)
def test_scalars_of_numpy_count(name):
    expected, found = (
        tree.unwrap_random_key_data(CALLS[name]({"a": x}))
        for x in (jnp.float32(1), np.float32(1))
    )
    assert jax.tree.all(jax.tree.map(np.array_equal, found, expected))


def test_numpy_numbers_in_float64():
    """Without x64, they are float32, and JAX does not warn about it."""
    found = tree.scale(np.float64(0.5), {"a": np.asarray([1.0, -2.0])})["a"]
    assert found.dtype == jnp.float32 and found.tolist() == [0.5, -1.0]


STORED = {
    "8 bits": lambda opt: eqopt.StoreState(opt, BlockwiseQuantized()),
    "on the host": lambda opt: eqopt.Offload(opt, min_size=1),
}


@functools.cache
def moments_in(form):
    """A tree of stored moments, and the same tree of arrays."""
    params = {"w": 2 + jnp.sin(jnp.arange(4096.0)).reshape(64, 64), "n": 3}
    opt = STORED[form](eqopt.Adam(0.1))
    _, state = opt.step({**params, "n": None}, opt.init(params), params)
    stored = tree.get(state, "mu")
    assert is_stored(stored["w"])
    return stored, load(stored)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("form", STORED)
@pytest.mark.costly
def test_stored_arrays_are_what_they_stand_for(form, name):
    """Not codes and scales. Only casts leave them as they are."""
    stored, plain = moments_in(form)
    found = CALLS[name](stored)
    expected = stored if name in ("cast", "cast_like") else CALLS[name](plain)
    assert eqx.tree_equal(found, expected, typematch=True)
    shapes = jax.eval_shape(lambda: stored)
    assert tree.size(shapes) == 4096 and tree.dtype(shapes) == jnp.float32
    assert tree.zeros_like(shapes)["w"].shape == (64, 64)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "complex64"])
def test_dtypes_are_those_of_the_first_tree(dtype, x64):
    """Also with 64 bits turned on, and with numbers of 64 bits."""
    with x64():
        x = {"x": jnp.ones((2, 2), dtype)}
        y = {"x": jnp.full((2, 2), 0.5, "float32")}
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
    clipped = tree.clip(x, -1, 1)
    np.testing.assert_array_equal(clipped["z"], [1 + 1j, 1j])
    half = tree.cast(x, jnp.bfloat16)
    assert (half["z"].dtype, half["x"].dtype) == (jnp.complex64, jnp.bfloat16)
    real_moments = tree.update_moment_per_elem_norm(
        x, {"z": jnp.zeros(2), "x": jnp.zeros(1)}, 0.5, 2
    )
    np.testing.assert_allclose(real_moments["z"], [2.5, 4.5])
    cubes = tree.update_moment_per_elem_norm({"z": x["z"]}, {"z": jnp.zeros(2)}, 0.5, 3)
    np.testing.assert_allclose(cubes["z"], [5**1.5 / 2, 13.5], rtol=1e-6)
    largest = tree.update_infinity_moment(x, tree.zeros_like(tree.real(x)), 0.5, 0)
    np.testing.assert_allclose(largest["z"], [5**0.5, 3])


@pytest.mark.parametrize("fn", [tree.max, tree.min, tree.sum])
def test_nan_propagates(fn):
    x = jnp.ones(100_000).at[1].set(jnp.nan)
    assert jnp.isnan(jax.jit(fn)({"y": jnp.ones(2, jnp.float16), "x": x}))


def test_extremes():
    x = {
        "x": jnp.array([1.0, -jnp.inf]),
        "y": jnp.array(jnp.inf),
        "e": jnp.zeros((0, 2)),
    }
    assert (tree.min(x), tree.max(x)) == (-jnp.inf, jnp.inf)
    assert (tree.min({"e": x["e"]}), tree.max(None)) == (jnp.inf, -jnp.inf)
    nan = {"x": jnp.array(jnp.nan)}
    assert jnp.isnan(tree.clip(nan, -1, 1)["x"])
    assert not tree.allclose(nan, nan)
    assert tree.allclose(nan, nan, equal_nan=True)


def test_sizes_do_not_overflow():
    large = jax.ShapeDtypeStruct((2**20, 2**20), jnp.bfloat16)
    size = tree.size([large] * 5)
    assert size == 5 * 2**40 and type(size) is int
    assert tree.size(model_of()) == 12


def test_chosen_not_multiplied():
    """A NaN in the tree that is not chosen leaves no trace."""
    x, y = {"x": jnp.ones(2)}, {"x": jnp.full(2, jnp.nan)}
    assert (tree.where(True, x, y)["x"] == 1).all()
    assert (jax.jit(tree.where)(False, y, x)["x"] == 1).all()


@pytest.mark.slow
def test_jit_and_vmap():
    """One program for all values, and along an axis what it is for each."""
    fns = ARITHMETIC | REDUCTIONS | {"random": lambda x, y: tree.random_like(0, x)}
    all_of_them = lambda x, y: {name: fn(x, y) for name, fn in fns.items()}
    one = {"x": jnp.ones(2), "n": None}
    pairs = [({"x": jnp.arange(2.0) - i, "n": None}, one) for i in range(2)]
    stacked = jax.tree.map(lambda *xs: jnp.stack(xs), *pairs)
    out = jax.jit(jax.vmap(all_of_them))(*stacked)
    for i in range(2):
        found = jax.tree.map(lambda x, i=i: x[i], out)
        expected = all_of_them(*pairs[i])
        assert eqx.tree_equal(found, expected, rtol=1e-6, atol=1e-6)


def test_random_numbers_of_one_array_do_not_depend_on_the_others():
    small, large = ({"x": jnp.ones(n), "y": jnp.ones(3)} for n in (1, 7))
    one, other = (tree.random_like(0, x) for x in (small, large))
    assert eqx.tree_equal(one["y"], other["y"])
    keys = tree.unwrap_random_key_data(tree.split_key_like(0, small))
    assert (keys["x"] != keys["y"]).any()


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.costly
def test_derivatives_of_moments_at_zero(order, dtype):
    moment = lambda g: tree.sum(
        tree.update_moment_per_elem_norm(g, jnp.zeros(2), 0.5, order)
    )
    slope = jax.grad(moment)(jnp.zeros(2, dtype))
    assert jnp.isfinite(slope).all()


def test_trees_are_sharded_like_the_target():
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


def test_abstract_arrays():
    abstract = eqx.filter_eval_shape(model_of)
    assert tree.cast(abstract, jnp.bfloat16).linear.weight.dtype == jnp.bfloat16
    assert tree.cast(abstract, jnp.bfloat16).count.dtype == jnp.int32
    batched = tree.batch_shape(abstract, (4,))
    assert batched.linear.weight.shape == (4, 3, 2)
    assert tree.cast_like(model_of(), abstract).scale.dtype == jnp.float32
    assert tree.dtype(abstract) == jnp.float32


@pytest.mark.parametrize(
    ("opt", "count"),
    [
        (eqopt.Adam(0.1), 4),
        (eqopt.Chain(eqopt.ScaleByAdam(), eqopt.Scale(-0.1)), 4),
        (eqopt.Scheduled(eqopt.MultiSteps(eqopt.Adam(0.1), 2)), 2),
        (eqopt.Partition({0: eqopt.SGD(0.1), "b": eqopt.Adam(0.1)}, {"w": "b"}), 4),
        (eqopt.Chain(eqopt.Adam(0.1), eqopt.ReduceLROnPlateau(0.5)), 4),
        (eqopt.ConditionallyMask(eqopt.Adam(0.1), lambda step: step % 2 == 0), 2),
    ],
    ids=lambda x: None if isinstance(x, int) else type(x).__name__,
)
@pytest.mark.filterwarnings("ignore:Partition")
@pytest.mark.costly
def test_step_count(opt, count):
    params = {"w": jnp.ones(2)}
    state = opt.init(params)
    assert tree.step_count(state) == 0
    for _ in range(4):
        _, state = opt.step(params, state, params, value=jnp.ones(()))
    assert eqx.filter_jit(tree.step_count)(state) == count


def test_step_count_of_nothing():
    state = eqopt.Clip(1.0).init({"w": jnp.ones(2)})
    with pytest.raises(KeyError, match=r"nothing in this NoneType counts.*ScaleByLear"):
        tree.step_count(state)
    state = eqopt.Adam(0.1).init({"w": jnp.ones(2)})
    with pytest.raises(KeyError, match=r"tree\.step_count\(state\)"):
        tree.get(state, "count")
