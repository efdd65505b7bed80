"""What exists at a checkpoint's path: only files are replaced."""

import concurrent.futures
import errno
import os
import stat

import numpy as np
import pytest

from eqopt.checkpoint import load, save


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.eqx"


def make_pipe(path):
    os.mkfifo(path)


def make_directory(path):
    path.mkdir()


def make_loop(path):
    path.symlink_to(path)


@pytest.mark.parametrize("make", [make_pipe, make_directory, make_loop])
@pytest.mark.parametrize("through_link", [False, True])
def test_no_file(path, make, through_link):
    make(path)
    before = os.lstat(path)
    to = path
    if through_link:
        to = path.with_name("link.eqx")
        to.symlink_to(path)
    names = sorted(os.listdir(path.parent))
    with pytest.raises(OSError, match="other than a file") as raised:
        save(to, 1.5)
    is_directory = make is make_directory
    assert raised.value.errno == (errno.EISDIR if is_directory else errno.EINVAL)
    assert os.lstat(path)[:4] == before[:4]
    assert sorted(os.listdir(path.parent)) == names


@pytest.mark.parametrize("is_hard", [False, True])
def test_links_at_the_temporary_path(path, is_hard):
    """The other file, to which the temporary one links, is not changed."""
    other = path.with_name("other")
    other.write_bytes(b"precious")
    unfinished = path.with_name("run.eqx.tmp")
    if is_hard:
        unfinished.hardlink_to(other)
    else:
        unfinished.symlink_to(other)
    save(path, 1.5)
    assert other.read_bytes() == b"precious" and load(path, 0.0) == 1.5
    assert sorted(os.listdir(path.parent)) == ["other", "run.eqx"]
    assert path.is_file() and not path.is_symlink()


def test_through_links(path):
    """Also if links lead to other directories, or to a file that does not exist yet."""
    directory = path.with_name("elsewhere")
    directory.mkdir()
    path.symlink_to(path.with_name("second.eqx"))
    path.with_name("second.eqx").symlink_to(directory / "third.eqx")
    for value in (1.5, 2.5):
        save(path, value)
        assert load(path, 0.0) == load(directory / "third.eqx", 0.0) == value
    assert path.is_symlink() and path.with_name("second.eqx").is_symlink()
    assert os.listdir(directory) == ["third.eqx"]


def test_threads_that_save_to_one_path(path):
    """One after the other: they share the temporary file."""
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(save, path, np.full(99, i)) for i in range(24)]:
            done.result()
    assert os.listdir(path.parent) == [path.name]
    assert len({*load(path, np.zeros(99, int)).tolist()}) == 1


@pytest.mark.parametrize("mode", [0o600, 0o664])
def test_permissions_stay(path, mode):
    save(path, 1.5)
    path.chmod(mode)
    save(path, 2.5)
    assert stat.S_IMODE(path.stat().st_mode) == mode and load(path, 0.0) == 2.5


def test_permissions_of_new_files(path):
    before = os.umask(0o027)
    try:
        save(path, 1.5)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_private_file_is_private_while_it_is_written(path, monkeypatch):
    """If the old file is private, so is the new one."""
    save(path, 1.5)
    path.chmod(0o600)
    seen = []

    def look(descriptor):
        seen.append(stat.S_IMODE(os.fstat(descriptor).st_mode))

    monkeypatch.setattr(os, "fsync", look)
    opened = os.open

    def look_at_once(name, *args):
        descriptor = opened(name, *args)
        if str(name).endswith(".tmp"):
            look(descriptor)
        return descriptor

    monkeypatch.setattr(os, "open", look_at_once)
    save(path, 2.5)
    assert seen[:2] == [0o600, 0o600]
