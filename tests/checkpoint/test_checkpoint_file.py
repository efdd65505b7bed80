"""One file: loading returns what was saved, or raises an error that says why not."""

import errno
import functools
import hashlib
import os
import resource
import stat
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec as P

import eqopt
from eqopt.checkpoint import (
    CheckpointError,
    check_layout,
    layout,
    load,
    read_metadata,
    save,
)

from .resealed import resealed


class Model(eqx.Module):
    """A leaf of each kind that a tree can have."""

    weight: Any
    host: np.ndarray
    key: Any
    activation: Callable
    rate: float
    large: int
    flag: bool
    number: Any
    name: str
    nothing: None


def model(dtype=jnp.float32, scale=1.0, **kwargs):
    weight = (scale * jnp.arange(6.0).reshape(2, 3)).astype(dtype)
    defaults = {
        "weight": weight,
        "host": np.array([0.1, scale]),
        "key": jr.key(int(10 * scale)),
        "activation": jnp.tanh,
        "rate": 0.1 * scale,
        "large": int(2**60 + scale),
        "flag": scale == 1.0,
        "number": np.float64(0.1 * scale),
        "name": "model",
        "nothing": None,
    }
    return Model(**{**defaults, **kwargs})


def assert_same(left, right):
    assert jax.tree.structure(left) == jax.tree.structure(right)
    unwrap = eqopt.tree.unwrap_random_key_data
    pairs = zip(*(jax.tree.leaves(unwrap(t)) for t in (left, right)), strict=True)
    for x, y in pairs:
        assert type(x) is type(y)
        if eqx.is_array_like(x):
            assert np.asarray(x).dtype == np.asarray(y).dtype
            assert np.asarray(x).tobytes() == np.asarray(y).tobytes()
        else:
            assert x == y


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.eqx"


#
# Loading returns what was saved
#


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_everything_comes_back_to_the_bit(path, dtype):
    saved = model(dtype)
    save(path, saved)
    loaded = load(path, model(dtype, 0.5))
    assert_same(loaded, saved)
    assert jr.key_impl(loaded.key) == jr.key_impl(saved.key)


def test_into_shapes(path):
    key = jr.split(jr.key(3, impl="rbg"), 2)
    make = lambda: {"key": key, "mlp": eqx.nn.MLP(2, 1, 3, 1, key=jr.key(0))}
    save(path, make())
    loaded = load(path, eqx.filter_eval_shape(make))
    assert_same(loaded, make())
    assert str(jr.key_impl(loaded["key"])) == "rbg"


def test_leaves_that_are_not_numbers_come_from_like(path):
    save(path, model())
    loaded = load(path, model(activation=jnp.sin, name="other"))
    assert loaded.activation is jnp.sin and loaded.name == "other"
    # Functions and `None` can replace one another, because the file has nothing of
    # either.
    assert load(path, model(activation=None)).activation is None


def test_metadata(path):
    save(path, 1.5, {"losses": [0.5, float("inf")], "name": "ä"})
    assert read_metadata(path) == {"losses": [0.5, float("inf")], "name": "ä"}
    save(path, 1.5)
    assert read_metadata(path) is None


def test_another_number_of_devices(path):
    x = jnp.arange(16.0).reshape(8, 2)
    on = lambda n: NamedSharding(Mesh(jax.devices()[:n], "d"), P("d"))
    save(path, jax.device_put(x, on(8)))
    for like in (
        jax.device_put(jnp.zeros_like(x), on(4)),
        jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=on(2)),
        jax.device_put(jnp.zeros_like(x), jax.devices()[3]),
    ):
        loaded = load(path, like)
        assert loaded.sharding == like.sharding
        assert (loaded == x).all()
    assert not load(path, jnp.zeros_like(x)).committed


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_shards_come_from_the_host(path, dtype, monkeypatch):
    """So that a leaf can be larger than the memory of one device."""
    x = jnp.arange(16.0).reshape(8, 2).astype(dtype)
    save(path, x)
    put, seen = jax.device_put, []

    def put_and_look(x, *args, **kwargs):
        seen.append(type(x))
        return put(x, *args, **kwargs)

    sharding = NamedSharding(Mesh(jax.devices(), "d"), P("d"))
    like = jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
    monkeypatch.setattr(jax, "device_put", put_and_look)
    loaded = load(path, like)
    assert seen == [np.ndarray]
    assert loaded.sharding == sharding and (loaded == x).all()


def test_equinox_reads_the_leaves(path):
    save(path, model(key=None))
    with path.open("rb") as file:
        for _ in range(2):
            file.readline()
        loaded = eqx.tree_deserialise_leaves(file, model(scale=0.5, key=None))
    assert_same(loaded, model(key=None))


#
# What does not fit
#


def mlp(width=4, depth=1):
    return eqx.nn.MLP(2, 1, width, depth, key=jr.key(0))


def run_of(opt, model=None):
    model = mlp() if model is None else model
    return {"model": model, "state": opt.init(model)}


@functools.cache
def adam():
    return run_of(eqopt.Adam(0.1))


def flat(*sizes):
    return eqopt.Flatten(eqopt.Trace(0.9)).init([jnp.ones(n) for n in sizes])


@pytest.mark.parametrize(
    "saved, like, expected",
    [
        # Another optimizer with the same fields and shapes.
        (
            adam,
            lambda: run_of(eqopt.AMSGrad(0.1)),
            r"`\['state'\]\[0\]` \(ScaleByAdamState against ScaleByAMSGradState\).*"
            r"Only `like` has .*nu_max",
        ),
        (
            adam,
            lambda: run_of(eqopt.SGD(0.1, momentum=0.9)),
            r"Only the checkpoint has `\['state'\]\[0\]\.count`",
        ),
        (
            adam,
            lambda: run_of(eqopt.Adam(0.1), mlp(width=5)),
            r"`\['model'\]\.layers\[0\]\.weight` "
            r"\(float32\[4,2\] against float32\[5,2\]\)",
        ),
        # Another model, which is not saved, with a vector of the same size.
        (
            lambda: flat(2, 3),
            lambda: flat(3, 2),
            r"`\.shapes\[0\]` \(shape \[2\] against shape \[3\]\)",
        ),
        (lambda: 1, lambda: 1.0, r"\(int against float\)"),
        (lambda: jr.key(0), lambda: jr.key(0, impl="rbg"), r"against key<rbg>\[\]\)"),
    ],
)
def test_another_tree(path, saved, like, expected):
    save(path, saved())
    before = path.read_bytes()
    message = (
        rf"run\.eqx does not fit `like`\..*{expected}.*Create `like` with the model"
    )
    with pytest.raises(CheckpointError, match=message):
        load(path, like())
    assert path.read_bytes() == before


def test_files_without_shapes(path):
    """Files of earlier versions have none, so any parameters of that size fit."""
    save(path, flat(2, 3))

    def forget(header):
        rows = header["layout"]
        shapes = [row for row in rows if row[1].startswith("shape ")]
        assert [row[0] for row in shapes] == [".shapes[0]", ".shapes[1]"]
        header["layout"] = [row for row in rows if row not in shapes]

    path.write_bytes(resealed(path.read_bytes(), forget))
    for like in (flat(2, 3), flat(3, 2)):
        assert eqx.tree_equal(load(path, like), like)


THREE = {name: jnp.ones((6, 4)) for name in "abc"}
DIVIDED = {
    "DistributeMatrices": lambda mesh: eqopt.DistributeMatrices(
        eqopt.SOAP(0.1), mesh=mesh
    ),
    "ZeRO1": lambda mesh: eqopt.ZeRO1(eqopt.Adam(0.1), mesh=mesh),
}


def abstract(devices):
    return AbstractMesh((devices,), ("data",), (AxisType.Auto,))


@pytest.mark.parametrize("make", DIVIDED.values(), ids=DIVIDED)
@pytest.mark.costly
def test_states_for_another_number_of_devices(make, path):
    mesh = jax.make_mesh((8,), ("data",), (AxisType.Auto,))
    save(path, jax.jit(make(mesh).init)(THREE))
    of_4, of_8 = (eqx.filter_eval_shape(make(abstract(n)).init, THREE) for n in (4, 8))
    with pytest.raises(CheckpointError, match="AbstractMesh` of as many"):
        load(path, of_4)

    # What the message says.
    few = jax.make_mesh((4,), ("data",), (AxisType.Auto,), devices=jax.devices()[:4])
    state = eqopt.tree.migrate(make(few), load(path, of_8), THREE)
    assert eqx.tree_equal(state, make(few).init(THREE))


def test_layouts_of_other_libraries():
    rows = layout(run_of(eqopt.Adam(0.1)))
    assert ["['state'][0].mu.layers[1].bias", "float32[1]"] in rows
    check_layout(rows, eqx.filter_eval_shape(adam.__wrapped__))  # no cache of tracers
    # Functions leave no trace: the arrays of a model are what they are.
    assert layout(eqx.filter(mlp(), eqx.is_array)) == layout(mlp())
    with pytest.raises(CheckpointError, match=r"^my run does not fit `like`"):
        check_layout(rows, run_of(eqopt.Lion(0.1)), "my run")


#
# Damage
#


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The bytes of a checkpoint."""
    path = tmp_path_factory.mktemp("whole") / "run.eqx"
    save(path, adam(), {"epoch": 3})
    return path.read_bytes()


def assert_refused(path, data, expected="damaged"):
    path.write_bytes(data)
    for read in (lambda: load(path, adam()), lambda: read_metadata(path)):
        with pytest.raises(CheckpointError, match=expected) as raised:
            read()
        assert "\n" not in str(raised.value)
    assert path.read_bytes() == data


def test_truncated(path, whole):
    ends = {0, 1, 30, 99, 100, 101, *range(0, len(whole), 97), len(whole) - 1}
    for end in sorted(ends):
        assert_refused(path, whole[:end])
    assert_refused(path, whole + b"\0")


def test_flipped_bits(path, whole):
    rng = np.random.default_rng(0)
    first_line = range(whole.index(b"\n") + 1)
    for i in [*first_line, *rng.integers(len(whole), size=200)]:
        data = bytearray(whole)
        data[i] ^= 1 << int(rng.integers(8))
        # A flipped bit in the number of the format makes another number.
        assert_refused(path, bytes(data), "damaged|has format")


def test_another_format(path, whole):
    start = whole[:101].replace(b"checkpoint 1 0.1.0", b"checkpoint 2 0.0.7")
    digest = hashlib.sha256(start.rpartition(b" ")[0] + b" " + whole[101:]).hexdigest()
    data = start.rpartition(b" ")[0] + b" " + digest.encode() + b"\n" + whole[101:]
    expected = r"has format 2, of eqopt 0\.0\.7, but eqopt .* reads format 1\."
    assert_refused(path, data, expected)


def test_files_of_others(path, whole):
    for data in (b"PK\3\4" + whole, b"\n" * 1000, b"\xff" * 10**4):
        assert_refused(path, data, "damaged, or not a checkpoint")
    with path.open("wb") as file:
        eqx.tree_serialise_leaves(file, adam())
    assert_refused(path, path.read_bytes(), "with `eqx.tree_deserialise_leaves`")


def test_no_file(path):
    with pytest.raises(FileNotFoundError, match=r"run\.eqx"):
        load(path, 0.0)


#
# Disks
#


def test_disk_that_becomes_full(path):
    """The system stops the file at a size, somewhere within the leaves."""
    large = {"x": jnp.arange(100_000.0), "y": jnp.arange(5)}
    save(path, large)
    negative = jax.tree.map(lambda x: -x, large)  # JAX stores programs in files, too
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, before[1]))
    try:
        with pytest.raises(OSError, match=r"File too large\n.*: nothing was") as raised:
            save(path, negative)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert raised.value.errno == errno.EFBIG
    assert_same(load(path, large), large)
    assert os.listdir(path.parent) == ["run.eqx"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, "Input/output error"), KeyboardInterrupt()], ids=repr
)
def test_what_fails_at_the_end(path, monkeypatch, call, error):
    def fails(*args):
        raise error

    save(path, model())
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fails)
        with pytest.raises(type(error)) as raised:
            save(path, model(scale=0.5))
    if isinstance(error, OSError):
        assert "eqopt.checkpoint.save: nothing was saved." in raised.value.__notes__
    assert_same(load(path, model()), model())
    assert os.listdir(path.parent) == ["run.eqx"]


@pytest.mark.parametrize("call", ["open", "fsync"])
@pytest.mark.parametrize("code", [errno.EACCES, errno.EINVAL, errno.EIO])
def test_directories_that_cannot_be_synced(path, monkeypatch, call, code):
    """Then the new file is there, and only an error of the disk is an error."""
    real = getattr(os, call)

    def fails(name, *args):
        if call == "fsync" and stat.S_ISREG(os.fstat(name).st_mode):
            return real(name)
        if call == "open" and not os.path.isdir(name):
            return real(name, *args)
        raise OSError(code, os.strerror(code))

    save(path, model())
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fails)
        if code == errno.EIO:
            with pytest.raises(OSError) as raised:
                save(path, model(scale=0.5))
            assert "the checkpoint was saved" in raised.value.__notes__[0]
        else:
            save(path, model(scale=0.5))
    assert_same(load(path, model()), model(scale=0.5))
    assert os.listdir(path.parent) == ["run.eqx"]


def test_a_directory_that_does_not_exist(path):
    with pytest.raises(
        FileNotFoundError, match=r"No such file.*\n.*: nothing was saved"
    ):
        save(path.parent / "missing" / "run.eqx", 1.5)


def test_the_temporary_file_of_a_crash_is_overwritten(path):
    path.with_name("run.eqx.tmp").write_bytes(b"half of a checkpoint" * 1000)
    save(path, model())
    assert_same(load(path, model(scale=0.5)), model())
    assert os.listdir(path.parent) == ["run.eqx"]
