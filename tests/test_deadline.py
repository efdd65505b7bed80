"""Tests that start after the deadline are left for another run, which is said."""

import pathlib
import subprocess
import sys
import time

import pytest

from .deadline import Deadline


ROOT = pathlib.Path(__file__).parents[1]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.slow
def test_what_has_no_time_is_counted(workers):
    def printed(deadline):
        where = ["tests/test_names.py", f"--deadline={deadline}"]
        command = [sys.executable, "-m", "pytest", "-q", f"-n{workers}", *where]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout

    in_time = printed(time.time() + 600)
    assert " passed" in in_time and "left for another run" not in in_time
    too_late = printed(time.time() - 1)
    assert " tests were left for another run" in too_late and "passed" not in too_late


def test_each_run_begins_with_other_tests():
    groups = [f"row {i}" for i in range(100)]
    orders = [sorted(groups, key=Deadline(at).turn) for at in (1e9, 1e9 + 1, 1e9 + 2)]
    first = [{*order[:50]} for order in orders]
    assert first[0] != first[1] != first[2]
    assert len(set.union(*first)) > 75
