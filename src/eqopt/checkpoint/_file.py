"""A checkpoint in one file: all of it is there, or the one before it."""

import contextlib
import errno
import hashlib
import importlib
import json
import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any, BinaryIO, no_type_check

import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree

from ._layout import (
    CheckpointError,
    check_layout,
    is_key,
    is_number,
    is_saved,
    layout,
)


# The first line has this number, the version of eqopt, and the digest of all else in the
# file. Then come a line of JSON and the leaves, as `eqx.tree_serialise_leaves` has them.
_FORMAT = 1
_FIRST_LINE = re.compile(rb"(eqopt checkpoint (\d+) (\S+) )([0-9a-f]{64})\n")
_LONGEST_FIRST_LINE = 256
_VERSION = importlib.import_module(
    "eqopt"
).__version__  # of which its stub knows nothing


def save(path: str | os.PathLike[str], tree: PyTree, metadata: Any = None) -> None:
    """Writes a tree to a file, in the place of an older one, or leaves that one alone.

    It goes into `path` with `.tmp` behind it, and onto the disk; then the file is
    renamed. A process that is killed at any time, or a disk that is full, leaves the old
    checkpoint as it was. A `.tmp` that is left behind is written over by the next call.

    !!! example

        ```python
        eqopt.checkpoint.save("run.eqx", (model, state), {"epoch": 3})

        like = eqx.filter_eval_shape(lambda: (model, opt.init(model)))
        model, state = eqopt.checkpoint.load("run.eqx", like)
        assert eqopt.checkpoint.read_metadata("run.eqx") == {"epoch": 3}
        ```

    **Arguments:**

    - `path`: the file. Its directory has to exist. No two processes may write it at the
        same time: if there are several, the first one saves, or Orbax does.
    - `tree`: any pytree, a model and its state say. JAX arrays, typed random keys among
        them, NumPy arrays and Python numbers are saved to the last bit, sharded ones
        whole; functions, strings and all else are not.
    - `metadata`: anything that `json.dumps` takes, such as a history of losses or the
        options of the run.

    **Raises:**

    An `OSError` of the kind that the system raised if the file cannot be written; a
    `TypeError` if `tree` has an array of objects, or `metadata` is not for JSON. In each
    case the old checkpoint is unchanged.
    """
    header = {"layout": layout(tree), "metadata": metadata}
    target = pathlib.Path(os.path.realpath(path))  # renaming would replace a link
    unfinished = target.with_name(f"{target.name}.tmp")
    line = json.dumps(header).encode() + b"\n"
    try:
        with unfinished.open("wb") as file:
            _write(file, line, tree)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise _not_written(error, target) from error
        raise
    _sync_directory(target.parent)


def _write(file: BinaryIO, line: bytes, tree: PyTree) -> None:
    start = f"eqopt checkpoint {_FORMAT} {_VERSION} ".encode()
    file.write(start + b"0" * 64 + b"\n")
    body = _Hashed(file, start)
    body.write(line)
    # Equinox would do these loops, but for typed keys, and wraps what the system raises.
    for leaf in jtu.tree_leaves(tree):
        _write_leaf(body, leaf)
    file.seek(len(start))
    file.write(body.digest.hexdigest().encode())


class _Hashed:
    """A file that takes the digest of what is written to it."""

    def __init__(self, file: BinaryIO, start: bytes):
        self.file, self.digest = file, hashlib.sha256(start)

    def write(self, data: Any) -> int:
        self.digest.update(data)
        return self.file.write(data)


def _not_written(error: OSError, target: pathlib.Path) -> OSError:
    code = error.errno or errno.EIO
    reason = error.strerror or str(error)
    message = (
        f"eqopt.checkpoint.save: {reason}, so nothing was saved. An older checkpoint in "
        "the same place is unchanged and can be loaded"
    )
    # Python makes a `PermissionError` of EACCES, and so on.
    return OSError(code, message, str(target))


def _sync_directory(directory: pathlib.Path) -> None:
    """Makes a renaming last, where directories can be opened: not on Windows."""
    if hasattr(os, "O_DIRECTORY"):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def load(path: str | os.PathLike[str], like: PyTree) -> PyTree:
    """Reads what [`eqopt.checkpoint.save`][] wrote, after all of it has been checked.

    **Arguments:**

    - `path`: the file.
    - `like`: a tree of the same structure, of which everything is taken that is not in
        the file: functions, strings, static fields. Its arrays may be
        `jax.ShapeDtypeStruct`s, as `eqx.filter_eval_shape` makes them; those with a
        `sharding`, and arrays that have been put on devices, say where to put what is
        loaded, which may be on other devices, and more or fewer of them.

    **Returns:**

    A tree like `like` with the arrays and numbers of the file.

    **Raises:**

    A [`eqopt.checkpoint.CheckpointError`][] if the file is no checkpoint, of another
    format, or damaged (truncated, or any of its bits flipped), or if it does not fit
    `like`: by another model, another optimizer or another dtype; the key paths are named.
    An `OSError` if it cannot be read, a `FileNotFoundError` if it is not there.
    """
    with _checked(path) as (file, header):
        check_layout(header["layout"], like, str(path))
        leaves, treedef = jtu.tree_flatten(like)
        return treedef.unflatten([_read_leaf(file, leaf) for leaf in leaves])


def read_metadata(path: str | os.PathLike[str]) -> Any:
    """The metadata of a checkpoint, which can be read before there is a tree to load.

    **Arguments:**

    - `path`: the file.

    **Returns:**

    What JSON made of the `metadata` that went into [`eqopt.checkpoint.save`][]: lists of
    tuples, and `None` if there were none.

    **Raises:**

    What [`eqopt.checkpoint.load`][] raises, but for trees that do not fit.
    """
    with _checked(path) as (_, header):
        return header["metadata"]


@contextlib.contextmanager
def _checked(path: str | os.PathLike[str]) -> Iterator[tuple[BinaryIO, dict[str, Any]]]:
    """The file, where its leaves begin, and its header, after the digest was right."""
    with open(path, "rb") as file:
        first = _FIRST_LINE.fullmatch(file.readline(_LONGEST_FIRST_LINE))
        if first is None:
            raise CheckpointError(
                f"{path} is damaged or no checkpoint: it does not begin as "
                "eqopt.checkpoint.save has it. What `eqx.tree_serialise_leaves` wrote, "
                "`eqx.tree_deserialise_leaves` reads."
            )
        start, number, version, digest = first.groups()
        if int(number) != _FORMAT:
            raise CheckpointError(
                f"{path} has format {int(number)}, of eqopt {version.decode()}, but "
                f"eqopt {_VERSION} reads format {_FORMAT}. Load it with the "
                "version that wrote it, and pass it on by `eqx.tree_serialise_leaves`; "
                "or start a new run with another path."
            )
        body = file.tell()
        found = hashlib.file_digest(file, lambda: hashlib.sha256(start))
        if found.hexdigest().encode() != digest:
            raise CheckpointError(
                f"{path} is damaged: its {os.path.getsize(path)} bytes are not those "
                "that were saved. Take an older checkpoint or a copy."
            )
        file.seek(body)
        header = json.loads(file.readline())
        yield file, header


@no_type_check  # called once per leaf, like the next
def _write_leaf(file, x):
    if is_saved(x):
        np.save(file, np.asarray(jr.key_data(x) if is_key(x) else x))


@no_type_check
def _read_leaf(file, like):
    if not is_saved(like):
        return like
    x = np.load(file)
    if is_number(like):
        return type(like)(x.item())
    if is_key(like):
        x = jr.wrap_key_data(x, impl=jr.key_impl(jnp.empty((), like.dtype)))
        return _placed(x, like)
    if x.dtype != like.dtype:  # NumPy's files know no bfloat16
        x = x.view(like.dtype)
    if isinstance(like, np.generic):
        return x[()]
    return x if isinstance(like, np.ndarray) else _placed(jnp.array(x), like)


@no_type_check
def _placed(x, like):
    """`x` on the devices of `like`, if these were chosen."""
    is_struct = isinstance(like, jax.ShapeDtypeStruct)
    is_chosen = like.sharding is not None if is_struct else like.committed
    return jax.device_put(x, like.sharding) if is_chosen else x
