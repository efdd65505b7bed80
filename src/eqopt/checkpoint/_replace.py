"""Replaces a file atomically, or keeps it."""

import contextlib
import errno
import os
import pathlib
import stat
import threading
from collections.abc import Generator
from typing import BinaryIO


# The locks of processes: after a fork, a thread of the parent may hold the old one.
_LOCKS: dict[int, threading.RLock] = {}


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Generator[BinaryIO, None, None]:
    """A new file to write to. It replaces `path` at the end, unless there is an error.

    Threads take turns, because those that save to one path share the temporary file.

    **Raises:**

    An `OSError` whose message says that nothing was saved, or that everything was, but
    perhaps not for long.
    """
    with _LOCKS.setdefault(os.getpid(), threading.RLock()), _replacing(path) as file:
        yield file


@contextlib.contextmanager
def _replacing(path: str | os.PathLike[str]) -> Generator[BinaryIO, None, None]:
    target = pathlib.Path(os.path.realpath(path))  # renaming would replace a link
    unfinished = target.with_name(f"{target.name}.tmp")
    try:
        old = _replaceable(target)
        _remove(unfinished)
        # The file is new, so nothing is written through an existing link. It has the
        # permissions of the old file.
        mode = 0o666 if old is None else 0o600
        opener = lambda name, flags: os.open(name, flags, mode)
        with (
            open(unfinished, "xb", opener=opener) as file,
            _deleted_on_error(unfinished),
        ):
            yield file
            file.flush()
            if old is not None:
                where = file.fileno() if os.chmod in os.supports_fd else unfinished
                os.chmod(where, stat.S_IMODE(old.st_mode))
            os.fsync(file.fileno())
            os.replace(unfinished, target)
    except OSError as error:
        raise _not_written(error, target) from error
    _sync_directory(target)


def _replaceable(target: pathlib.Path) -> os.stat_result | None:
    """The status of a file, `None` if it does not exist; only regular files pass."""
    directory = target.parent
    if not os.path.lexists(directory):
        raise FileNotFoundError(
            errno.ENOENT,
            f"The directory {directory} does not exist (create it with "
            f"`os.makedirs({str(directory)!r})`)",
        )
    found = _found(target)
    if found is None or stat.S_ISREG(found.st_mode):
        return found
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    raise OSError(errno.EINVAL, f"There is {_kind(found)} instead of a file")


def _remove(unfinished: pathlib.Path) -> None:
    """Deletes the leftovers of a crash, or a link (but not its target)."""
    found = _found(unfinished)
    if found is None:
        return
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)):
        raise OSError(
            errno.EEXIST,
            f"There is {_kind(found)} at {unfinished}, the temporary file",
        )
    unfinished.unlink()


def _found(path: pathlib.Path) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except FileNotFoundError:
        return None


_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFLNK: "a symbolic link to itself",
}


def _kind(found: os.stat_result) -> str:
    return _KINDS.get(stat.S_IFMT(found.st_mode), "something other than a file")


@contextlib.contextmanager
def _deleted_on_error(path: pathlib.Path) -> Generator[None, None, None]:
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink()
        raise


def _not_written(error: OSError, target: pathlib.Path) -> OSError:
    code = error.errno or errno.EIO
    reason = error.strerror or str(error)
    message = f"eqopt.checkpoint.save: {reason}, so nothing was saved."
    if os.path.isfile(target):
        message += " The older checkpoint there is unchanged and can be loaded."
    # Python turns EACCES into a `PermissionError`, and so on.
    return OSError(code, message, str(target))


# Some file systems, for example on a network, cannot sync a directory. And a directory
# to which one may write cannot be opened if one may not read it.
_CANNOT_SYNC = errno.EACCES, errno.EPERM, errno.EINVAL, errno.EBADF, errno.ENOTSUP


def _sync_directory(target: pathlib.Path) -> None:
    """Makes a renaming durable, if directories can be opened: not on Windows."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    try:
        descriptor = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            code = error.errno or errno.EIO
            reason = error.strerror or str(error)
            message = (
                f"eqopt.checkpoint.save: {reason}, after the checkpoint was saved. It "
                "can be loaded, but a power failure may bring back the older one."
            )
            raise OSError(code, message, str(target)) from error
