"""DP-SGD on real digits, run as a reader runs it: fewer steps."""

import pathlib
import re
import subprocess
import sys

import pytest
from matplotlib.image import imread


SCRIPT = pathlib.Path(__file__).parents[2] / "docs" / "examples" / "train_privately.py"


def run(*options):
    command = [sys.executable, str(SCRIPT), *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.slow
def test_learns_within_the_budget(tmp_path):
    output = tmp_path / "privacy.png"
    done = run("--steps", 40, "--report-every", 20, "--output", output)
    assert done.returncode == 0, done.stderr
    found = re.findall(r"epsilon +(\S+) +test accuracy (\S+) %", done.stdout)
    (first, _), (second, private), _, (infinite, plain) = found
    # The accountant's results for 20 and 40 steps, q = 256 / 1347 and sigma = 3.
    assert 0.9 < float(first) < float(second) < 1.6
    assert float(private) > 75
    assert infinite == "inf" and float(plain) > 95
    assert not re.search("per_example", done.stdout)
    assert min(imread(output).shape[:2]) > 500
