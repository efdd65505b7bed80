"""The picture on the page about Monte-Carlo estimators."""

import pathlib
import subprocess
import sys

import pytest


ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.slow
def test_draws_what_the_page_shows(tmp_path):
    output = tmp_path / "estimators.svg"
    script = ROOT / "docs" / "examples" / "draw_estimators.py"
    subprocess.run([sys.executable, script, output], check=True)
    shown = (ROOT / "docs" / "images" / "estimators.svg").read_text()
    for text in ("score function, baseline", "pathwise", "measure-valued, not coupled"):
        assert f"<!-- {text} -->" in shown
        assert f"<!-- {text} -->" in output.read_text()
