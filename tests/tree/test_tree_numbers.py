"""What counts in a tree: inexact arrays, and no number is passed over in silence."""

import functools
import inspect

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqopt
from eqopt import tree
from eqopt._trees.stored import is_stored, load
from eqopt.storage import BlockwiseQuantized, Cast, Float8, StochasticRounding


# Calls with one tree, which is also the second one where there are two.
CALLS = {
    "add": lambda x: tree.add(x, x),
    "add_scale": lambda x: tree.add_scale(x, 2.0, x),
    "div": lambda x: tree.div(x, x),
    "mul": lambda x: tree.mul(x, x),
    "scale": lambda x: tree.scale(2.0, x),
    "sub": lambda x: tree.sub(x, x),
    "batch_shape": lambda x: tree.batch_shape(x, (2,)),
    "cast": lambda x: tree.cast(x, jnp.bfloat16),
    "cast_like": lambda x: tree.cast_like(x, x),
    "clip": lambda x: tree.clip(x, 0.0, 1.0),
    "conj": tree.conj,
    "dtype": tree.dtype,
    "real": tree.real,
    "where": lambda x: tree.where(True, x, x),
    "full_like": lambda x: tree.full_like(x, 2.0),
    "ones_like": tree.ones_like,
    "zeros_like": tree.zeros_like,
    "bias_correction": lambda x: tree.bias_correction(x, 0.9, 1),
    "update_infinity_moment": lambda x: tree.update_infinity_moment(x, x, 0.9, 0.0),
    "update_moment": lambda x: tree.update_moment(x, x, 0.9, 1),
    "update_moment_per_elem_norm": lambda x: tree.update_moment_per_elem_norm(
        x, x, 0.9, 2
    ),
    "norm": tree.norm,
    "random_like": lambda x: tree.random_like(0, x),
    "split_key_like": lambda x: tree.split_key_like(0, x),
    "allclose": lambda x: tree.allclose(x, x),
    "max": tree.max,
    "min": tree.min,
    "size": tree.size,
    "sum": tree.sum,
    "vdot": lambda x: tree.vdot(x, x),
}
PAIRS = {
    "add": tree.add,
    "add_scale": lambda x, y: tree.add_scale(x, 2.0, y),
    "div": tree.div,
    "mul": tree.mul,
    "sub": tree.sub,
    "where": lambda x, y: tree.where(True, x, y),
    "update_infinity_moment": lambda x, y: tree.update_infinity_moment(y, x, 0.9, 0.0),
    "update_moment": lambda x, y: tree.update_moment(y, x, 0.9, 1),
    "update_moment_per_elem_norm": lambda x, y: tree.update_moment_per_elem_norm(
        y, x, 0.9, 2
    ),
    "allclose": tree.allclose,
    "vdot": tree.vdot,
}

# They look at all leaves, or at none of a tree that a user makes up.
OTHERS = {"get", "get_all_with_path", "map_params", "nbytes", "set", "step_count"}
OTHERS |= {"metrics", "migrate", "migration_plan", "unwrap_random_key_data"}


NUMBERS = {
    "scale": lambda n, x: tree.scale(n, x),
    "add_scale": lambda n, x: tree.add_scale(x, n, x),
    "clip": lambda n, x: tree.clip(x, -n, n),
    "full_like": lambda n, x: tree.full_like(x, n),
    "bias_correction": lambda n, x: tree.bias_correction(x, n, np.int64(2)),
    "update_moment": lambda n, x: tree.update_moment(x, x, n, 1),
}


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("convert", [np.asarray, jnp.asarray])
def test_numpy_numbers_in_float64(name, convert):
    """Without x64, they are float32, and JAX does not warn about it."""
    x = {"a": convert([1.0, -2.0])}
    found = NUMBERS[name](np.float64(0.5), x)["a"]
    assert found.dtype == jnp.float32
    expected = NUMBERS[name](0.5, jax.tree.map(jnp.asarray, x))["a"]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("count", [np.uint8(2), jnp.uint32(2)], ids=repr)
def test_unsigned_counts(count):
    x = {"a": jnp.ones(2)}
    np.testing.assert_allclose(tree.bias_correction(x, 0.5, count)["a"], 4 / 3, 1e-6)


def test_every_function_of_the_room_is_here():
    room = {name for name in dir(tree) if inspect.isfunction(getattr(tree, name))}
    assert room == set(CALLS) | OTHERS


# These say that everything else than arrays becomes `None`, or stays as it is.
OF_ANYTHING = {"batch_shape", "cast", "cast_like", "conj", "dtype", "full_like", "real"}
OF_ANYTHING |= {"ones_like", "random_like", "split_key_like", "zeros_like"}


@pytest.mark.parametrize("name", sorted(CALLS.keys() - OF_ANYTHING))
def test_numbers_alone_are_an_error(name):
    for x, path in (
        ({"a": 3.0}, r"\['a'\]"),
        ([None, ("b", 3.0)], r"\[1\]\[1\]"),
        (3.0, r"\(the root\)"),
    ):
        expected = rf"^{name}: .*3\.0 .*`{path}`, but only arrays count"
        with pytest.raises(TypeError, match=expected):
            CALLS[name](x)


@pytest.mark.parametrize("name", CALLS)
def test_numbers_in_a_model_belong_to_the_model(name):
    for x in (eqx.nn.Dropout(0.5), {"a": None}, eqx.nn.Lambda(jnp.tanh), {}):
        CALLS[name](x)
    x = {"w": jnp.ones(2), "layers": [eqx.nn.Dropout(0.5), 2]}
    result = CALLS[name](x)
    if isinstance(result, dict):
        assert result["layers"][0].p in (0.5, None)


@pytest.mark.parametrize("name", CALLS)
def test_scalars_of_arrays_count(name):
    expected = CALLS[name]({"a": jnp.ones((), jnp.float32)})
    for x in (np.float32(1), np.ones((), np.float32)):
        result = CALLS[name]({"a": x})
        assert jax.tree.structure(result) == jax.tree.structure(expected)
        for ours, theirs in zip(*map(jax.tree.leaves, (result, expected)), strict=True):
            is_key = hasattr(ours, "dtype") and jnp.issubdtype(
                ours.dtype, jax.dtypes.prng_key
            )
            assert is_key or np.all(np.asarray(ours) == np.asarray(theirs))


STORED = {
    "8 bits": lambda opt: eqopt.StoreState(opt, BlockwiseQuantized()),
    "4 bits": lambda opt: eqopt.StoreState(opt, BlockwiseQuantized(4)),
    "float8": lambda opt: eqopt.StoreState(opt, Float8()),
    "bfloat16": lambda opt: eqopt.StoreState(opt, Cast()),
    "at random": lambda opt: eqopt.StoreState(opt, StochasticRounding()),
    "on the host": lambda opt: eqopt.Offload(opt, min_size=1),
    "both": lambda opt: eqopt.Offload(eqopt.StoreState(opt, Float8()), min_size=1),
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


@pytest.mark.parametrize("name", PAIRS)
def test_numbers_that_differ_are_an_error(name):
    x, y = ({"w": jnp.ones(2), "rate": rate} for rate in (1.0, 2.0))
    with pytest.raises(ValueError, match=r"1\.0 of type float at `\['rate'\]`.*2\.0"):
        PAIRS[name](x, y)
    PAIRS[name](x, {**y, "rate": 1.0})
    model, other = ({"w": jnp.ones(2), "drop": eqx.nn.Dropout(p)} for p in (0.1, 0.2))
    with pytest.raises(ValueError, match=r"\['drop'\]\.p"):
        PAIRS[name](model, other)


@pytest.mark.parametrize(
    "dtype", [jnp.int32, jnp.uint8, bool, jnp.bfloat16, jnp.complex64]
)
def test_trees_of_any_dtype(dtype):
    x = {"a": jnp.ones(2), "b": np.ones((), np.float32), "c": jnp.ones(2, complex)}
    shapes = jax.eval_shape(lambda: x)
    for like in (x, shapes):
        for make, value in (
            (tree.zeros_like, 0),
            (tree.ones_like, 1),
            (lambda x, dtype: tree.full_like(x, 1, dtype), 1),
        ):
            made = make(like, dtype)
            for name in ("a", "b"):
                assert made[name].shape == x[name].shape
                assert made[name].dtype == jax.dtypes.canonicalize_dtype(dtype)
                assert np.all(np.asarray(made[name]) == value)
    assert tree.zeros_like(x, jnp.int32)["c"].dtype == jnp.int32
    assert tree.zeros_like(x, jnp.float32)["c"].dtype == jnp.complex64


def test_random_bits():
    x = {"a": jnp.ones(2), "b": jnp.ones(3, jnp.bfloat16)}
    for call in (tree.random_like, jax.jit(tree.random_like, static_argnums=(2, 3))):
        bits = call(jr.key(0), x, jr.bits, jnp.uint32)
        assert jax.tree.map(lambda b: (b.shape, str(b.dtype)), bits) == {
            "a": ((2,), "uint32"),
            "b": ((3,), "uint32"),
        }


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.uint8, bool, jnp.float8_e4m3fn])
def test_updates_of_data_are_an_error(dtype):
    params = {"w": jnp.ones(2), "n": jnp.full(2, 5, dtype)}
    updates = {"w": jnp.ones(2), "n": jnp.full(2, -0.1)}
    message = rf"\['n'\].*{jnp.dtype(dtype)}.*astype\(jnp\.float32\)"
    with pytest.raises(ValueError, match=message):
        eqopt.apply_updates(params, updates)
    moved = eqopt.apply_updates(params, {**updates, "n": None})
    assert jnp.all(moved["n"] == params["n"])
    opt = eqopt.SGD(0.1)
    with pytest.raises(ValueError, match=message):
        opt.step(updates, opt.init(params), params)


@pytest.mark.parametrize(
    ("opt", "count"),
    [
        (eqopt.Adam(0.1), 4),
        (eqopt.Rprop(0.1), 4),
        (eqopt.Chain(eqopt.Clip(1.0), eqopt.SGD(0.1)), 4),
        (eqopt.Chain(eqopt.ScaleByAdam(), eqopt.Scale(-0.1)), 4),
        (eqopt.MultiSteps(eqopt.Adam(0.1), 2), 2),
        (eqopt.Scheduled(eqopt.MultiSteps(eqopt.Adam(0.1), 2)), 2),
        (eqopt.ParamEMA(eqopt.MultiSteps(eqopt.Adam(0.1), 2)), 2),
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
    assert tree.step_count(state) == count
    assert eqx.filter_jit(tree.step_count)(state) == count


def test_step_count_of_nothing():
    state = eqopt.Clip(1.0).init({"w": jnp.ones(2)})
    with pytest.raises(KeyError, match=r"nothing in this NoneType counts.*ScaleByLear"):
        tree.step_count(state)
    state = eqopt.Adam(0.1).init({"w": jnp.ones(2)})
    with pytest.raises(KeyError, match=r"tree\.step_count\(state\)"):
        tree.get(state, "count")
