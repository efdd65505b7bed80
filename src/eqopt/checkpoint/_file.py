"""A checkpoint in one file: either complete, or the previous one is kept."""

import contextlib
import errno
import hashlib
import json
import numbers
import os
import pathlib
import re
import stat
import threading
from collections.abc import Collection, Generator, Iterator, Sequence
from typing import Any, BinaryIO

import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jax.sharding import AbstractMesh, NamedSharding

from .. import __version__  # type: ignore  # not in the stub
from .._errors import noting
from .._trees.leaves import listed, type_name
from .._trees.stored import put_back
from .._types import PyTree, Tree


class CheckpointError(ValueError):
    """A checkpoint is damaged, or does not fit the tree that it is loaded into.

    It is raised before anything is changed, on disk or in memory.
    """


#
# The structure of a tree, in a form that can be stored next to its arrays
#


def layout(tree: PyTree) -> list[list[str]]:
    """The structure of `tree`: classes of its nodes, dtypes and shapes of its leaves.

    Store it next to the arrays, and use [`eqopt.checkpoint.check_layout`][] to check
    whether they fit another tree. [`eqopt.checkpoint.save`][] does this automatically.

    !!! example

        ```python
        assert eqopt.checkpoint.layout((1.0, jnp.zeros((3, 2)))) == [
            ["", "tuple"],
            ["[0]", "float"],
            ["[1]", "float32[3,2]"],
        ]
        ```

    **Arguments:**

    - `tree`: any pytree. `jax.ShapeDtypeStruct`s count as arrays.

    **Returns:**

    Pairs of a key path and a description, which can be written as JSON. Functions,
    strings, `None` and other leaves that are neither arrays nor numbers are omitted. The
    states of [`eqopt.Flatten`][] and [`eqopt.ZeRO1`][] add the shapes that their arrays
    had before they were joined or padded. Older versions did not, so these shapes are
    not checked for their files.
    """
    return [list(row) for row in _rows(tree, "")]


def _rows(tree, path) -> Iterator[tuple[str, str]]:
    children, _ = jtu.tree_flatten_with_path(tree, is_leaf=lambda x: x is not tree)
    if len(children) == 1 and children[0][1] is tree:
        if is_saved(tree):
            yield path, _described(tree)
    elif tree is not None:
        # For stored arrays, the same bits mean other numbers if static fields differ.
        yield path, getattr(tree, "layout_name", type(tree).__name__)
        for i, shape in enumerate(getattr(tree, "_layout_shapes", ())):
            if shape is not None:
                yield f"{path}.shapes[{i}]", f"{_SHAPE}{list(shape)}"
        for key, child in children:
            yield from _rows(child, path + jtu.keystr(key))


# How the rows for shapes begin that do not follow from the shapes of the leaves.
_SHAPE = "shape "


def is_saved(x):
    """Whether a leaf is an array or a number, of Python or NumPy."""
    return is_number(x) or isinstance(
        x, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct
    )


def is_number(x: Any) -> bool:
    # NumPy's float64 is a subclass of Python's float, but its dtype must be kept.
    return isinstance(x, int | float | complex) and not isinstance(x, np.generic)


def is_key(x):
    """Whether a leaf is an array of typed random keys."""
    return isinstance(x, jax.Array | jax.ShapeDtypeStruct) and jnp.issubdtype(
        x.dtype, jax.dtypes.prng_key
    )


def is_weak(x):
    """Whether a leaf is a weakly typed JAX array."""
    return isinstance(x, jax.Array | jax.ShapeDtypeStruct) and bool(
        getattr(x, "weak_type", False)  # typed keys do not have it
    )


def _described(x):
    return type(x).__name__ if is_number(x) else type_name(x.dtype, x.shape)


def check_layout(
    saved: Sequence[Sequence[str]], like: PyTree, name: str = "the checkpoint"
) -> None:
    """Raises an error that names key paths, unless arrays fit the tree `like`.

    **Arguments:**

    - `saved`: the [`eqopt.checkpoint.layout`][] of the tree that was saved.
    - `like`: a tree with the expected structure.
    - `name`: the name of the checkpoint in the error.

    **Raises:**

    A [`eqopt.checkpoint.CheckpointError`][] that lists differences of classes, dtypes
    or shapes, and leaves that only one of them has.
    """
    expected = layout(like)
    if not any(text.startswith(_SHAPE) for _, text in saved):
        # Older versions did not write these rows.
        expected = [row for row in expected if not row[1].startswith(_SHAPE)]
    if [list(row) for row in saved] == expected:
        return
    there, here = ({row[0]: row[1] for row in rows} for rows in (saved, expected))
    other = [
        f"`{path or '(the root)'}` ({x} against {here[path]})"
        for path, x in there.items()
        if here.get(path, x) != x
    ]
    only_there = [path for path in there if path not in here]
    only_here = [path for path in here if path not in there]
    message = f"{name} does not fit `like`."
    if other:
        message += f" They differ at {listed(other, quote='')}."
    if only_there:
        message += f" Only the checkpoint has {listed(only_there)}."
    if only_here:
        message += f" Only `like` has {listed(only_here)}."
    message += f" {_WHAT_TO_DO}"
    if any(there[path] in _BY_DEVICES and path in here for path in there):
        message += f" {_OF_AS_MANY}"
    raise CheckpointError(message)


_WHAT_TO_DO = (
    "Create `like` with the model and the optimizer of the saved run, with the same "
    "storage of state and parameters, or start a new run with another path."
)

# Classes of nodes whose arrays depend on the number of devices, and what to do then.
_BY_DEVICES = "Stacks", "ZeRO1State"
_OF_AS_MANY = (
    "If `ZeRO1` or `DistributeMatrices` had another number of devices, create `like` "
    "with a `jax.sharding.AbstractMesh` of as many, outside `jax.set_mesh`, and convert "
    "the loaded state with `eqopt.tree.migrate`."
)


#
# A file that replaces the old one as a whole
#


_NOTHING_SAVED = "eqopt.checkpoint.save: nothing was saved"

# The locks of processes: after a fork, a thread of the parent may hold the old one.
_LOCKS: dict[int, threading.RLock] = {}


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Generator[BinaryIO, None, None]:
    """A new file to write to. It replaces `path` at the end, unless there is an error.

    Threads take turns, because those that save to one path share the temporary file.

    **Raises:**

    An `OSError` whose note says that nothing was saved, or that everything was, but
    perhaps not for long.
    """
    target = pathlib.Path(os.path.realpath(path))  # renaming would replace a link
    with _LOCKS.setdefault(os.getpid(), threading.RLock()):
        with noting(f"{_NOTHING_SAVED}.", OSError), _unfinished(target) as file:
            yield file
        _sync_directory(target.parent)


@contextlib.contextmanager
def _unfinished(target: pathlib.Path) -> Generator[BinaryIO, None, None]:
    old = os.lstat(target) if os.path.lexists(target) else None

    if old is not None and not stat.S_ISREG(old.st_mode):
        code = errno.EISDIR if stat.S_ISDIR(old.st_mode) else errno.EINVAL
        raise OSError(code, "There is something other than a file at the path")
    unfinished = target.with_name(f"{target.name}.tmp")
    unfinished.unlink(missing_ok=True)  # of a crash
    # The file is new, so nothing is written through an existing link. It has the
    # permissions of the old file.
    mode = 0o666 if old is None else 0o600
    opener = lambda name, flags: os.open(name, flags, mode)
    with open(unfinished, "xb", opener=opener) as file:
        try:
            yield file
            file.flush()
            if old is not None:
                where = file.fileno() if os.chmod in os.supports_fd else unfinished
                os.chmod(where, stat.S_IMODE(old.st_mode))
            os.fsync(file.fileno())
            os.replace(unfinished, target)
        except BaseException:
            with contextlib.suppress(OSError):
                unfinished.unlink()
            raise


# Some file systems, for example on a network, cannot sync a directory. And a directory
# to which one may write cannot be opened if one may not read it.
_CANNOT_SYNC = errno.EACCES, errno.EPERM, errno.EINVAL, errno.EBADF, errno.ENOTSUP


def _sync_directory(directory: pathlib.Path) -> None:
    """Makes a renaming durable, if directories can be opened: not on Windows."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            error.add_note(
                "eqopt.checkpoint.save: the checkpoint was saved and can be loaded, but "
                "a power failure may bring back the older one."
            )
            raise


#
# The checkpoint
#


# The first line has this number, the version of eqopt, and the digest of everything
# else in the file. A line of JSON follows, then the leaves, in the format of
# `eqx.tree_serialise_leaves`.
_FORMAT = 1
_FIRST_LINE = re.compile(rb"(eqopt checkpoint (\d+) (\S+) )([0-9a-f]{64})\n")
_LONGEST_FIRST_LINE = 256


def save(path: str | os.PathLike[str], tree: PyTree, metadata: Any = None) -> None:
    """Writes a tree to a file. Only a complete file replaces an older one.

    It writes a new file, `path` with `.tmp` appended, flushes it to disk, and renames
    it. If the process is killed at any time, or the disk is full, the old checkpoint
    stays as it was. The next call deletes a leftover `.tmp`.

    If `path` is a symbolic link, the checkpoint is written to its target, and the link
    remains. A new checkpoint keeps the permissions of the old one.

    !!! example

        ```python
        eqopt.checkpoint.save("run.eqx", (model, state), {"epoch": 3})

        like = eqx.filter_eval_shape(lambda: (model, opt.init(model)))
        model, state = eqopt.checkpoint.load("run.eqx", like)
        assert eqopt.checkpoint.read_metadata("run.eqx") == {"epoch": 3}
        ```

    **Arguments:**

    - `path`: the file. Its directory must exist. Two processes must not write it at the
        same time: let only the first process save, or use Orbax.
    - `tree`: any pytree, such as a model and its state. JAX arrays (including typed
        random keys and weak types), NumPy arrays and Python numbers are saved exactly;
        sharded arrays are saved whole. Functions, strings and everything else are not
        saved.
    - `metadata`: anything that `json.dumps` accepts, such as a history of losses or the
        options of the run.

    **Raises:**

    An `OSError`, of the class that the system raised, if the file cannot be written, or
    if there is a directory, a device or a pipe at the path. A `TypeError` or a
    `ValueError` if `metadata` cannot be written as JSON. The error of NumPy or JAX, with
    the key path in a note, for a leaf without values, such as a donated array, and for
    one that could not be restored exactly, such as a masked array. In each case, the old
    checkpoint stays unchanged, unless a note says that the new one was saved.
    """
    weak = [jtu.keystr(at) for at, x in jtu.tree_leaves_with_path(tree) if is_weak(x)]
    header = {"layout": layout(tree), "weak_types": weak, "metadata": metadata}
    line = json.dumps(header).encode() + b"\n"
    with replacing(path) as file:
        _write(file, line, tree)


def _write(file: BinaryIO, line: bytes, tree: PyTree) -> None:
    start = f"eqopt checkpoint {_FORMAT} {__version__} ".encode()
    file.write(start + b"0" * 64 + b"\n")
    body = _Hashed(file, start)
    body.write(line)
    # Not Equinox's own loop, which does not handle typed keys and wraps system errors.
    for at, leaf in jtu.tree_leaves_with_path(tree):
        where = jtu.keystr(at) or "(the root)"
        note = f"{_NOTHING_SAVED}, because of the leaf at `{where}`."
        with noting(note, TypeError, ValueError, RuntimeError):
            _write_leaf(body, leaf)
    file.seek(len(start))
    file.write(body.digest.hexdigest().encode())


class _Hashed:
    """A file that computes the digest of everything written to it."""

    def __init__(self, file: BinaryIO, start: bytes):
        self.file, self.digest = file, hashlib.sha256(start)

    def write(self, data: Any) -> int:
        self.digest.update(data)
        return self.file.write(data)


def load(path: str | os.PathLike[str], like: Tree) -> Tree:
    """Reads a checkpoint of [`eqopt.checkpoint.save`][] after checking the whole file.

    **Arguments:**

    - `path`: the file.
    - `like`: a tree with the same structure, which provides everything that is not in
        the file: functions, strings, static fields. Its arrays may be
        `jax.ShapeDtypeStruct`s, as returned by `eqx.filter_eval_shape`. If they have a
        `sharding`, or are arrays on specific devices, the loaded arrays are put there.
        These may be other devices than when saving, and more or fewer of them.

    **Returns:**

    A tree like `like` with the arrays and numbers of the file.

    **Raises:**

    A [`eqopt.checkpoint.CheckpointError`][] if the file is not a checkpoint, has
    another format, or is damaged (truncated, or with a flipped bit), or if it does not
    fit `like`: another model, another optimizer or another dtype. The error names the
    key paths. An `OSError` if the file cannot be read; a `FileNotFoundError` if it does
    not exist.
    """
    with opened(path, like) as (file, weak):
        leaves, treedef = jtu.tree_flatten_with_path(like)
        loaded = [
            as_saved(read_leaf(file), x, jtu.keystr(at), weak) if is_saved(x) else x
            for at, x in leaves
        ]
        return put_back(treedef.unflatten(loaded))


def read_metadata(path: str | os.PathLike[str]) -> Any:
    """The metadata of a checkpoint. You can read it before you have a tree to load.

    **Arguments:**

    - `path`: the file.

    **Returns:**

    The `metadata` passed to [`eqopt.checkpoint.save`][], after a round trip through
    JSON: tuples become lists. `None` if there were none.

    **Raises:**

    The errors of [`eqopt.checkpoint.load`][], except for trees that do not fit.
    """
    with _checked(path) as (_, header):
        return header["metadata"]


@contextlib.contextmanager
def opened(path: str | os.PathLike[str], like: PyTree):
    """The file before its first leaf, and the paths of weak types, for a tree that fits.

    The paths are `None` if the file is too old to have them.
    """
    with _checked(path) as (file, header):
        check_layout(header["layout"], like, str(path))
        yield file, set(header["weak_types"]) if "weak_types" in header else None


@contextlib.contextmanager
def _checked(path: str | os.PathLike[str]):
    """The file, the position of its leaves, and its header, after checking the digest."""
    with open(path, "rb") as file:
        first = _FIRST_LINE.fullmatch(file.readline(_LONGEST_FIRST_LINE))
        if first is None:
            raise CheckpointError(
                f"{path} is damaged, or not a checkpoint of eqopt. Read a file of "
                "`eqx.tree_serialise_leaves` with `eqx.tree_deserialise_leaves`."
            )
        start, number, version, digest = first.groups()
        if int(number) != _FORMAT:
            writer = version.decode(errors="replace")
            raise CheckpointError(
                f"{path} has format {int(number)}, of eqopt {writer}, but eqopt "
                f"{__version__} reads format {_FORMAT}. Load it with that version."
            )
        body = file.tell()
        found = hashlib.file_digest(file, lambda: hashlib.sha256(start))
        if found.hexdigest().encode() != digest:
            size = os.path.getsize(path)
            problem = f"{path} is damaged: its {size} bytes are not the ones saved."
            raise CheckpointError(problem)
        file.seek(body)
        yield file, json.loads(file.readline())


def _write_leaf(file: Any, x: Any) -> None:
    is_subclass = isinstance(x, np.ndarray) and type(x) is not np.ndarray
    if not is_saved(x) or is_subclass:
        if isinstance(x, numbers.Number) or hasattr(type(x), "__array__"):
            raise TypeError(
                f"A {type(x).__qualname__} could not be restored exactly. Save it as an "
                "array of NumPy, and the mask of a masked array separately."
            )
        return
    x = np.asarray(jr.key_data(x) if is_key(x) else x)
    np.save(file, x.view(_stored(x.dtype)), allow_pickle=False)


def _stored(dtype: np.dtype) -> np.dtype:
    """The dtype of an array in the file: NumPy's format does not support bfloat16."""
    was_registered = dtype.isbuiltin == 2
    return np.dtype(f"V{dtype.itemsize}") if was_registered else dtype


def read_leaf(file: BinaryIO) -> np.ndarray:
    """The next leaf of the file, in the dtype in which it is stored there."""
    return np.load(file, allow_pickle=False)


def as_saved(x: np.ndarray, like: Any, path: str, weak: Collection[str] | None) -> Any:
    """The leaf `x` of the file, which is at `path` in the tree, in the form of `like`.

    `weak` is as in `opened`.
    """
    if is_number(like):
        return type(like)(x.item())
    place = _place(like)
    if is_key(like):
        impl = jr.key_impl(jnp.empty((), like.dtype))
        keys = jr.wrap_key_data(jnp.asarray(x), impl=impl)
        return keys if place is None else jax.device_put(keys, place)
    x = x.view(like.dtype)
    if isinstance(like, np.ndarray | np.generic):
        return x if isinstance(like, np.ndarray) else x[()]
    has_weak_type = is_weak(like) if weak is None else path in weak
    made = _as_jax(x, place, has_weak_type)
    if made.dtype != like.dtype:
        is_wide: bool = jax.config.jax_enable_x64  # type: ignore  # added at run time
        raise CheckpointError(
            f"`{path or '(the root)'}` has dtype {like.dtype}, which JAX cannot create "
            f"with jax_enable_x64={is_wide}. Set it as in the saved run."
        )
    return made


def _as_jax(x: np.ndarray, place: Any, has_weak_type: bool) -> jax.Array:
    """An array of NumPy as one of JAX, which shares no memory with it."""
    if has_weak_type:
        # Values written into a weak array take its type, and numbers make weak arrays.
        weak = jnp.full(x.shape, x.dtype.type(0).item()).at[...].set(x)
        return weak if place is None else jax.device_put(weak, place)
    # Placed from the host: as a whole, it may be too large for one device.
    return jnp.array(x) if place is None else jax.device_put(x, place, may_alias=False)


def _place(like: Any) -> Any:
    """The sharding of `like`, if it has specific devices."""
    if isinstance(like, np.ndarray | np.generic):
        return None
    is_struct = isinstance(like, jax.ShapeDtypeStruct)
    sharding = like.sharding if is_struct or like.committed else None
    if not isinstance(sharding, NamedSharding):
        return sharding
    if not isinstance(sharding.mesh, AbstractMesh):
        return sharding
    # `eval_shape` on a mesh with explicit axes keeps the axes, but not the devices.
    mesh = jax.sharding.get_mesh()
    return None if mesh.empty else NamedSharding(mesh, sharding.spec)
