"""The language model of bytes, run as a reader runs it: fewer steps."""

import pathlib
import re
import subprocess
import sys

import pytest
from matplotlib.image import imread


ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = ROOT / "docs" / "examples" / "half_precision.py"


def run(*options):
    command = [sys.executable, str(SCRIPT), *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.slow
def test_half_the_bytes_and_the_same_loss(tmp_path):
    output = tmp_path / "new" / "half_precision.png"
    options = "--steps", 12, "--learning-rate", 0.01, "--output", output
    done = run(*options, "--quiet")
    assert done.returncode == 0 and not done.stderr, done.stderr
    found = re.findall(r"(\S+) bytes per parameter, (\S+) bits per byte", done.stdout)
    (of_full, full), (of_split, split), (of_half, _) = found
    # Biases and norms, a hundredth of all, have moments in float32 in any case.
    assert of_full == "16.0" and of_split == "8.1" and of_half == "8.0"
    assert float(full) < 5  # of 7 bits
    assert float(split) == pytest.approx(float(full), rel=0.01)
    assert min(imread(output).shape[:2]) > 500


def test_the_page_shows_its_picture():
    shown = (ROOT / "docs" / "images" / "half_precision.svg").read_text()
    labels = "bytes per parameter", "gradients", "bfloat16 alone: ", "8-bit state: "
    assert all(
        re.search(f"<!-- .*{label}.* -->|<!-- {label}", shown) for label in labels
    )
