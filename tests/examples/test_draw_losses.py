"""The picture on the page about losses."""

import pathlib
import subprocess
import sys

import pytest


ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.slow
def test_draws_what_the_page_shows(tmp_path):
    output = tmp_path / "losses.svg"
    script = ROOT / "docs" / "examples" / "draw_losses.py"
    subprocess.run([sys.executable, script, output], check=True)
    shown = (ROOT / "docs" / "images" / "losses.svg").read_text()
    assert all(
        f"<!-- {text} -->" in shown and f"<!-- {text} -->" in output.read_text()
        for text in ("huber_loss", "log_cosh", "sparsemax_loss", "of a margin")
    )
