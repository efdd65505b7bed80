"""After the deadline, no test starts, and the summary says how many are left."""

import pathlib
import re
import subprocess
import sys
import time

import pytest

from .deadline import Deadline


ROOT = pathlib.Path(__file__).parents[1]


def run(workers: int, deadline: float) -> tuple[int, str]:
    """The exit status, and what is printed."""
    where = ["tests/test_names.py", f"--deadline={deadline}"]
    command = [sys.executable, "-m", "pytest", "-q", f"-n{workers}", *where]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return process.returncode, process.stdout


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.slow
def test_what_has_no_time_is_counted(workers):
    status, printed = run(workers, time.time() + 600)
    passed = re.search(r"(\d+) passed", printed)
    assert status == 0 and passed and "lack of time" not in printed
    status, printed = run(workers, time.time() - 1)
    assert f"left for another run, for lack of time: {passed[1]}\n" in printed
    assert status == pytest.ExitCode.NO_TESTS_COLLECTED and "passed" not in printed


def test_each_run_begins_with_other_tests():
    groups = [f"row {i}" for i in range(100)]
    times = [1e9 + i for i in range(30)]
    orders = [sorted(groups, key=Deadline(at).turn) for at in times]
    for order in orders:  # the same circle
        i = order.index(orders[0][0])
        assert order[i:] + order[:i] == orders[0]
    # A quarter each time.
    assert {name for order in orders for name in order[:25]} == {*groups}
