"""The plan of a larger run from small sweeps, run in small, and its page."""

import pathlib
import re
import subprocess
import sys

import pytest
from matplotlib.image import imread


ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = ROOT / "docs" / "examples" / "draw_transfer.py"


@pytest.mark.slow
def test_plans_and_runs(tmp_path):
    output = tmp_path / "new" / "transfer.png"
    options = "--shrink", "32", "--seeds", "1", "--output", str(output), "--quiet"
    command = [sys.executable, str(SCRIPT), *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert re.search(r"exponent of tokens: \S+ ± \S+", done.stdout)
    losses = re.findall(r"^(\S+) bits per byte: ", done.stdout, re.MULTILINE)
    assert len(losses) == 6 and all(0 < float(loss) < 8 for loss in losses)
    assert min(imread(output).shape[:2]) > 400


def test_the_page_shows_its_picture():
    """The numbers of the picture are the page's."""
    shown = (ROOT / "docs" / "images" / "transfer.svg").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "larger_runs.md").read_text(encoding="utf-8")
    losses = re.findall(r"<!-- (\d\.\d{3}) -->", shown)
    assert len(losses) == 6
    for loss in losses:
        assert loss in page
    [(exponent, error)] = re.findall(r"<!-- exponent (\S+) ± (\S+) -->", shown)
    assert f"{exponent} ± {error}" in page
