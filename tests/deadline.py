"""Runs as many tests as the time allows: `pytest --deadline=1800000000`.

`.ci/run` has to end in time on any machine, however many tests there are. If all of them
take too long, each run begins with other ones, so that each test has its turn in the long
run. The summary says how many are left.
"""

import time
import zlib

import pytest


GOLDEN = 2654435769  # 2^32 divided by the golden ratio


class Deadline:
    """A plugin that starts no test after a certain time.

    **Arguments:**

    - `at`: the time, in seconds since 1970. It also determines with which tests this run
        begins.
    """

    def __init__(self, at: float):
        self.at = at
        self.num_run = self.num_left = 0

    def turn(self, group: str) -> int:
        """The place of a group of tests in this run: all are in a circle."""
        beginning = int(self.at) * GOLDEN  # evenly spread
        return (zlib.crc32(group.encode()) - beginning) % 2**32

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self):
        # Once it is too late, it stays too late: the fixtures of the next test are gone.
        if self.num_left or time.time() > self.at:
            self.num_left += 1
            return True  # so that pytest does not run this test
        return None

    def pytest_runtest_logreport(self, report):
        self.num_run += report.when == "call"

    def pytest_sessionfinish(self, session):
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["num_left"] = self.num_left
        elif session.testscollected and not self.num_run:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED

    @pytest.hookimpl(optionalhook=True)  # of pytest-xdist
    def pytest_testnodedown(self, node):
        self.num_left += getattr(node, "workeroutput", {}).get("num_left", 0)

    def pytest_terminal_summary(self, terminalreporter):
        if self.num_left:
            left = f"Tests left for another run, for lack of time: {self.num_left}"
            terminalreporter.write_line(left, yellow=True)


def deadline_of(config: pytest.Config) -> Deadline | None:
    return config.pluginmanager.get_plugin("deadline")


def add_option(parser: pytest.Parser) -> None:
    explanation = "start no test after this time, in seconds since 1970"
    parser.addoption("--deadline", type=float, metavar="TIME", help=explanation)


def configure(config: pytest.Config) -> None:
    at = config.getoption("deadline")
    if at is not None:
        config.pluginmanager.register(Deadline(at), "deadline")
