"""Each kind of leaf comes back as it was, or is refused by its key path."""

import enum
import os

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import eqopt
from eqopt.checkpoint import CheckpointError, load, save

from .resealed import resealed


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.eqx"


class Color(enum.IntEnum):
    RED = 3


SPECIAL = np.array([0.0, -0.0, np.inf, np.nan, 1e-45, 3e38], np.float32)
NAMES = ["int4", "uint2", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn", "bfloat16"]

RESTORED = {
    "bool": True,
    "large": 2**63 + 1,
    "small": -(2**63),
    "float": float("nan"),
    "negative zero": -0.0,
    "complex": 1 - 2j,
    "enum": Color.RED,
    "NumPy's scalar": np.float32(0.1),
    "NumPy's bool": np.bool_(True),
    "Fortran's order": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "strides": np.arange(12.0).reshape(3, 4)[::2, ::-1],
    "big end first": np.array([1.5, 2.5], ">f4"),
    "nothing of NumPy": np.zeros((0, 3), np.int16),
    "one of NumPy": np.array(1.5),
    "special": jnp.array(SPECIAL),
    "nothing": jnp.zeros((3, 0), jnp.bfloat16),
    "one": jnp.array(2, jnp.uint8),
    "weak": jnp.asarray(0.1),
    "weak integer": jnp.asarray(3),
    "weak complex": jnp.asarray(1 - 2j),
    "weak vector": jnp.full(len(SPECIAL), 1.0).at[:].set(SPECIAL),
    "weak nothing": jnp.full((0, 2), 1),
    "keys": jr.split(jr.key(1), (2, 3)),
    "no keys": jr.split(jr.key(1, impl="rbg"), 0),
    **{name: jnp.array([0, 1, 1], name) for name in NAMES},
    "bfloat16 of NumPy": np.array([0, 1, 1], jnp.bfloat16),
}


@pytest.mark.parametrize("name", RESTORED)
def test_comes_back(path, name):
    x = RESTORED[name]
    save(path, {"x": x})
    likes = [x]
    if isinstance(x, jax.Array):
        likes.append(jax.eval_shape(lambda: x))
    for like in likes:
        loaded = load(path, {"x": like})["x"]
        assert type(loaded) is type(x)
        if isinstance(x, jax.Array):
            assert loaded.aval == x.aval and not loaded.committed
        left, right = (
            np.asarray(eqopt.tree.unwrap_random_key_data(y)) for y in (loaded, x)
        )
        assert (left.dtype, left.shape) == (right.dtype, right.shape)
        assert left.tobytes() == right.tobytes()


def deleted():
    x = jnp.arange(3)
    x.delete()
    return x


LOST = {
    "masked": lambda: np.ma.masked_less(np.arange(3.0), 1),
    "objects": lambda: np.array([None]),
    "shape": lambda: jax.ShapeDtypeStruct((), "float32"),
    "deleted": deleted,
}


@pytest.mark.parametrize("name", LOST)
def test_is_refused(path, name):
    save(path, 1.5)
    with pytest.raises((TypeError, ValueError, RuntimeError)) as raised:
        save(path, {"a": [1.0, LOST[name]()]})
    assert "`['a'][1]`" in raised.value.__notes__[0]
    assert load(path, 0.0) == 1.5 and os.listdir(path.parent) == [path.name]


def test_precision_that_jax_does_not_have(path):
    save(path, np.float64(1.5) * np.ones(3))
    like = jax.ShapeDtypeStruct((3,), np.float64)
    with pytest.raises(CheckpointError, match=r"dtype float64.*jax_enable_x64=False"):
        load(path, like)


def test_the_second_step_does_not_compile_again(path):
    """Also if the state has weak types and `like` does not."""
    step = eqx.debug.assert_max_traces(max_traces=1)(lambda tree: tree)
    step = eqx.filter_jit(step)
    tree = {"rate": jnp.asarray(0.1), "x": jnp.ones(3)}
    step(tree)
    save(path, tree)
    step(load(path, eqx.filter_eval_shape(lambda: tree)))
    step(load(path, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), tree)))


def test_files_without_weak_types(path):
    """Files of earlier versions have none, so the types are as in `like`."""
    tree = {"rate": jnp.asarray(0.1), "x": jnp.ones(3)}
    save(path, tree)

    def forget(header):
        assert header.pop("weak_types") == ["['rate']"]

    path.write_bytes(resealed(path.read_bytes(), forget))
    loaded = load(path, eqx.filter_eval_shape(lambda: tree))
    assert loaded["rate"].aval == tree["rate"].aval and loaded["rate"] == tree["rate"]
    strong = {"rate": jnp.zeros(()), "x": jnp.zeros(3)}
    assert not load(path, strong)["rate"].weak_type


def test_shapes_on_a_mesh_with_explicit_axes(path):
    """`eval_shape` keeps the axes of the mesh, but not its devices."""
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        x = jax.device_put(jnp.arange(16.0), NamedSharding(mesh, P("x")))
        like = jax.eval_shape(lambda: x + 0)
    eqopt.checkpoint.save(path, x)
    with jax.set_mesh(mesh):
        found = eqopt.checkpoint.load(path, like)
    np.testing.assert_array_equal(found, x)
    assert found.sharding == x.sharding
    elsewhere = eqopt.checkpoint.load(path, like)  # no mesh says which devices
    np.testing.assert_array_equal(elsewhere, x)
