"""The search for learning rates at several widths, run in small."""

import pathlib
import re
import subprocess
import sys

import pytest
from matplotlib.image import imread


ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = ROOT / "docs" / "examples" / "draw_width_transfer.py"


def run(*options):
    command = [sys.executable, str(SCRIPT), *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.slow
def test_finds_the_best_of_each_width(tmp_path):
    output = tmp_path / "new" / "width_transfer.png"
    options = "--steps", 12, "--widths", 16, 32, "--seeds", 2, "--output", output
    done = run(*options, "--quiet")
    assert done.returncode == 0 and not done.stderr, done.stderr
    found = re.findall(r"(\S+) bits per byte at (\S+)", done.stdout)
    of_base, of_base_without, of_wide, of_wide_without = found
    assert of_base == of_base_without  # all factors are 1
    assert of_wide != of_wide_without
    assert all(float(loss) < 6.5 and 0 < float(rate) < 0.3 for loss, rate in found)
    assert min(imread(output).shape[:2]) > 500


def test_the_page_shows_its_picture():
    shown = (ROOT / "docs" / "images" / "width_transfer.svg").read_text()
    texts = "width 16", "width 128", "with eqopt.groups.mup", "without", "learning rate"
    assert all(f"<!-- {text} -->" in shown for text in texts)
