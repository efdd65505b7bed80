"""Files with a digest that is right, and contents that are not: errors, and only ours."""

import io
import json
import pickle
import random
import zipfile

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from eqopt.checkpoint import CheckpointError, load, read_metadata, save

from .resealed import resealed, sealed


TREE = {
    "array": jnp.arange(6.0).reshape(2, 3),
    "bfloat16": jnp.ones(2, jnp.bfloat16),
    "flag": True,
    "host": np.arange(4),
    "key": jr.key(3),
    "number": 1.5,
    "weak": jnp.asarray(2),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "run.eqx"
    save(path, TREE, {"epoch": 3})
    return path.read_bytes()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.eqx"


def members():
    parts = []
    for leaf in jax.tree.leaves(TREE):
        file = io.BytesIO()
        is_key = leaf is TREE["key"]
        leaf = np.asarray(jr.key_data(leaf) if is_key else leaf)
        np.save(file, leaf.view("V2") if leaf.dtype == jnp.bfloat16 else leaf)
        parts.append(file.getvalue())
    return parts


def npy(x, **kwargs):
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(x), **kwargs)
    return file.getvalue()


def claims(shape, descr="<f4"):
    """The beginning of a file of NumPy, and no more."""
    file = io.BytesIO()
    header = {"shape": shape, "fortran_order": False, "descr": descr}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue()


def zipped():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.npy", npy(np.ones(3)))
    return file.getvalue()


def test_members_are_those_that_were_saved(path, whole):
    """The cases below rely on this."""
    path.write_bytes(resealed(whole, change_body=lambda body: b"".join(members())))
    assert path.read_bytes() == whole
    assert load(path, TREE)["number"] == 1.5


# Other contents for `array`, the first member, and a part of the error for each.
FIRST = {
    "nothing": (b"", r"V2\[2\], unlike"),
    "another shape": (npy(np.zeros((3, 2), np.float32)), r"float32\[3,2\], unlike"),
    "as many elements": (npy(np.zeros(6, np.float32)), r"float32\[6\], unlike"),
    "another dtype": (npy(np.zeros((2, 3), np.int32)), r"int32\[2,3\], unlike"),
    "another order of bytes": (npy(np.zeros((2, 3), ">f4")), r"\[2,3\], unlike"),
    "huge": (claims((2**40, 2**20)), r"float32\[\d+,1048576\], unlike"),
    "negative": (claims((-2, -3)), r"float32\[-2,-3\], unlike"),
    "objects": (claims((2, 3), "|O"), r"object\[2,3\], unlike"),
    "pickled": (
        npy(np.array([None] * 6, object).reshape(2, 3), allow_pickle=True),
        r"object\[2,3\], unlike",
    ),
    "pickle": (pickle.dumps(np.zeros((2, 3), np.float32)), "magic string"),
    "archive": (zipped(), "magic string"),
    "no version": (b"\x93NUMPY\x09\x09" + bytes(100), "version"),
    "third version": (npy(np.zeros((2, 3)), version=(3, 0)), "version"),
    "no header": (b"\x93NUMPY\x01\x00\x04\x00{{{{", "EOF|header"),
    "nested header": (
        b"\x93NUMPY\x01\x00" + (9000).to_bytes(2, "little") + b"[" * 9000,
        "EOF|nested|header",
    ),
    # Python's message about this one differs between patch releases.
    "binary header": (
        b"\x93NUMPY\x01\x00\x04\x00\xff\x00\xfe\x01",
        "header|null bytes",
    ),
}


@pytest.mark.parametrize("name", FIRST)
def test_another_member(path, whole, name):
    first, expected = FIRST[name]
    body = first + b"".join(members()[1:])
    path.write_bytes(resealed(whole, change_body=lambda _: body))
    expected = rf"run\.eqx is damaged at `\['array'\]`: .*({expected}).*\. Use an older"
    with pytest.raises(CheckpointError, match=expected):
        load(path, TREE)
    assert read_metadata(path) == {"epoch": 3}


def change(parts, **others):
    names = list(TREE)
    return [others.get(name, part) for name, part in zip(names, parts, strict=True)]


@pytest.mark.parametrize(
    "make, expected",
    [
        (lambda x: change(x, flag=npy(1.0)), r"at `\['flag'\]`: .*float64\[\]"),
        (lambda x: change(x, flag=npy([True])), r"at `\['flag'\]`: .*bool\[1\]"),
        (lambda x: change(x, number=npy(1)), r"at `\['number'\]`: .*int64\[\]"),
        (lambda x: change(x, number=npy(1j)), r"at `\['number'\]`: .*complex128\[\]"),
        (lambda x: change(x, host=npy(np.arange(5))), r"at `\['host'\]`: .*int64\[5\]"),
        (lambda x: change(x, host=npy(np.ones(4))), r"at `\['host'\]`: .*float64\[4\]"),
        (lambda x: change(x, key=npy(np.ones(3, "u4"))), r"at `\['key'\]`: .*\[3\]"),
        (lambda x: change(x, key=npy(np.ones(2, "i4"))), r"at `\['key'\]`: .*\[2\]"),
        (
            lambda x: change(x, bfloat16=npy(np.ones(2, "f2"))),
            r"at `\['bfloat16'\]`: .*float16\[2\]",
        ),
        (lambda x: change(x, weak=npy(2.0)), r"at `\['weak'\]`: .*float64\[\]"),
        (lambda x: x[:-1], r"at `\['weak'\]`: .*"),
        (lambda x: x[:3] + x[4:], r"at `\['host'\]`: .*"),
        (lambda x: [x[1], x[0], *x[2:]], r"at `\['array'\]`: .*"),
        (lambda x: x[:2] + x[1:], r"at `\['flag'\]`: .*"),
        (lambda x: x + x[-1:], "there is more data after the last leaf"),
        (lambda x: [*x, b"\0"], "there is more data after the last leaf"),
        (lambda x: [claims((2, 3)), b"1234"], r"at `\['array'\]`: .*read all data"),
        (lambda x: [], r"at `\['array'\]`: .*"),
    ],
)
def test_other_members(path, whole, make, expected):
    body = b"".join(make(members()))
    path.write_bytes(resealed(whole, change_body=lambda _: body))
    with pytest.raises(CheckpointError, match=rf"run\.eqx is damaged.*{expected}"):
        load(path, TREE)


HEADERS = [
    None,
    3,
    "text",
    [],
    {},
    {"layout": []},
    {"metadata": 1},
    {"layout": None, "metadata": 1},
    {"layout": {"a": "b"}, "metadata": 1},
    {"layout": ["ab"], "metadata": 1},
    {"layout": [["a"]], "metadata": 1},
    {"layout": [["a", "b", "c"]], "metadata": 1},
    {"layout": [["a", 1]], "metadata": 1},
    {"layout": [[["a"], "b"]], "metadata": 1},
    {"layout": [], "metadata": 1, "weak_types": None},
    {"layout": [], "metadata": 1, "weak_types": "text"},
    {"layout": [], "metadata": 1, "weak_types": [1]},
    {"layout": [], "metadata": 1, "weak_types": [["a"]]},
]


@pytest.mark.parametrize("header", HEADERS, ids=str)
def test_another_header(path, whole, header):
    first, _, body = whole.split(b"\n", 2)
    path.write_bytes(sealed(first, json.dumps(header).encode() + b"\n" + body))
    for read in (lambda: load(path, TREE), lambda: read_metadata(path)):
        with pytest.raises(CheckpointError, match="its header is not a header"):
            read()


@pytest.mark.parametrize(
    "line", [b"", b"\n", b"\xff\xfe\n", b"{", b"[" * 10**5, b"1" * 10**5, b"{}" * 99]
)
def test_no_header(path, whole, line):
    first = whole.split(b"\n", 1)[0]
    path.write_bytes(sealed(first, line))
    for read in (lambda: load(path, TREE), lambda: read_metadata(path)):
        with pytest.raises(CheckpointError, match="its header is not valid JSON"):
            read()


def test_layouts_that_do_not_fit(path, whole):
    """A row twice, another order: whatever is not the layout of the tree."""
    for change in (
        lambda rows: rows + rows[-1:],
        lambda rows: [*rows, rows[1]],
        lambda rows: rows[::-1],
        lambda rows: rows[:-1],
        lambda rows: [],
    ):

        def changed(header, change=change):
            return {**header, "layout": change(header["layout"])}

        path.write_bytes(resealed(whole, changed))
        with pytest.raises(CheckpointError, match="does not fit `like`"):
            load(path, TREE)
        assert read_metadata(path) == {"epoch": 3}


def mutated(data, rng):
    """A few bytes changed, a piece taken out, doubled, moved, or something put in."""
    i, j = sorted(rng.sample(range(len(data) + 1), 2))
    kind = rng.randrange(6)
    if kind == 0:
        return data[:i] + rng.randbytes(min(j - i, 8)) + data[i + min(j - i, 8) :]
    if kind == 1:
        return data[:i] + data[j:]
    if kind == 2:
        return data[:j] + data[i:]
    if kind == 3:
        return data[:i]
    if kind == 4:
        return data[j:] + data[i:j] + data[:i]
    k = rng.randrange(len(data))
    return data[:k] + bytes([data[k] ^ 1 << rng.randrange(8)]) + data[k + 1 :]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.costly
def test_anything(path, whole, seed):
    """Any contents give an error of ours, or a tree of the right types."""
    rng = random.Random(seed)
    first, rest = whole.split(b"\n", 1)
    begin = rest.index(b"\n") + 1
    refused = 0
    for turn in range(150):
        # Mostly of the leaves, else the header is what fails.
        start = begin if turn % 3 else 0
        path.write_bytes(sealed(first, rest[:start] + mutated(rest[start:], rng)))
        for read in (lambda: load(path, TREE), lambda: read_metadata(path)):
            try:
                loaded = read()
            except CheckpointError as error:
                assert "\n" not in str(error)
                refused += 1
            else:
                if isinstance(loaded, dict) and loaded.keys() == TREE.keys():
                    assert_like(loaded, TREE)
    assert refused > 100


def assert_like(loaded, expected):
    for x, y in zip(*map(jax.tree.leaves, (loaded, expected)), strict=True):
        assert type(x) is type(y) and np.shape(x) == np.shape(y)
        if isinstance(y, jax.Array | np.ndarray):
            assert x.dtype == y.dtype


def test_versions_that_are_no_text(path, whole):
    first, rest = whole.split(b"\n", 1)
    first = first.replace(b"checkpoint 1 0", b"checkpoint 7 \xff\xfe")
    path.write_bytes(sealed(first, rest))
    with pytest.raises(CheckpointError, match="has format 7"):
        load(path, TREE)
