"""The picture on the page about projections."""

import pathlib
import subprocess
import sys

import pytest


ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.slow
def test_draws_what_the_page_shows(tmp_path):
    output = tmp_path / "projections.svg"
    script = ROOT / "docs" / "examples" / "draw_projections.py"
    subprocess.run([sys.executable, script, output], check=True)
    shown = (ROOT / "docs" / "images" / "projections.svg").read_text()
    for text in ("l1_ball(x)", "simplex(x)", "halfspace(x, a, 0.5)", "vector(x, a)"):
        assert f"<!-- {text} -->" in shown
        assert f"<!-- {text} -->" in output.read_text()
