"""Runs as many tests as the time allows: `pytest --deadline=1800000000`.

`.ci/run` has to end in time on any machine, however many tests there are. If all of them
take too long, each run begins with other ones, so that a few runs have had every one. The
summary says how many a run left for another one.
"""

import time
import zlib
from collections.abc import Hashable

import pytest


class Deadline:
    """**Arguments:**

    - `at`: no test starts after it, in seconds since 1970. It also determines which tests
        are first.
    """

    def __init__(self, at: float):
        self.at = at
        self.num_left = 0

    def turn(self, group: Hashable) -> int:
        """The place of a group of tests in the order of this run."""
        return zlib.crc32(f"{self.at} {group}".encode())

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self):
        if time.time() > self.at:
            self.num_left += 1
            return True  # this test is dealt with
        return None

    def pytest_sessionfinish(self, session):
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["num_left"] = self.num_left

    @pytest.hookimpl(optionalhook=True)  # of pytest-xdist
    def pytest_testnodedown(self, node):
        self.num_left += getattr(node, "workeroutput", {}).get("num_left", 0)

    def pytest_terminal_summary(self, terminalreporter):
        if self.num_left:
            left = f"{self.num_left} tests were left for another run: no time"
            terminalreporter.write_line(left, yellow=True)


def deadline_of(config: pytest.Config) -> Deadline | None:
    return config.pluginmanager.get_plugin("deadline")


def add_option(parser: pytest.Parser) -> None:
    explanation = "start no test after this time, in seconds since 1970"
    parser.addoption("--deadline", type=float, metavar="TIME", help=explanation)


def configure(config: pytest.Config) -> None:
    if at := config.getoption("deadline"):
        config.pluginmanager.register(Deadline(at), "deadline")
