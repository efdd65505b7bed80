"""Text that every machine has: the source of Python's standard library."""

import functools
import pathlib
import sysconfig

import numpy as np


MODULES = (  # as text, to keep this list short
    "argparse ast bdb calendar cmd configparser csv dataclasses datetime decimal difflib "
    "dis doctest enum fractions functools gettext heapq inspect ipaddress locale mailbox "
    "optparse pathlib pdb pickle platform plistlib pydoc random shutil smtplib socket "
    "ssl statistics string subprocess tarfile tempfile textwrap threading tokenize "
    "traceback turtle typing uuid warnings weakref zipfile"
)


@functools.cache
def source() -> str:
    """The source of these modules, concatenated. It depends on the Python version."""
    folder = pathlib.Path(sysconfig.get_path("stdlib"))
    files = [folder / f"{name}.py" for name in MODULES.split()]
    return "\n".join(f.read_text("utf-8") for f in files if f.exists())


@functools.cache
def in_bytes() -> np.ndarray:
    """The same in ASCII, as numbers below 128."""
    return np.frombuffer(source().encode("ascii", "replace"), np.uint8).astype(np.int32)
