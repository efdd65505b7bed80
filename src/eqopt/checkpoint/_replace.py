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

    An `OSError` whose message says that nothing was saved, or whose note says that
    everything was, but perhaps not for long.
    """
    target = pathlib.Path(os.path.realpath(path))  # renaming would replace a link
    with _LOCKS.setdefault(os.getpid(), threading.RLock()):
        try:
            with _unfinished(target) as file:
                yield file
        except OSError as error:
            code = error.errno or errno.EIO
            reason = error.strerror or str(error)
            # Python turns EACCES into a `PermissionError`, and so on.
            raise OSError(
                code,
                f"eqopt.checkpoint.save: {reason}, so nothing was saved.",
                str(target),
            ) from error
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
