"""The picture on the page about groups."""

import pathlib
import subprocess
import sys

import pytest


ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.slow
def test_draws_what_the_page_shows(tmp_path):
    output = tmp_path / "groups.svg"
    script = ROOT / "docs" / "examples" / "draw_groups.py"
    subprocess.run([sys.executable, script, output], check=True)
    assert output.read_text().count("</g>") > 100
    shown = (ROOT / "docs" / "images" / "groups.svg").read_text()
    assert all(
        f"<!-- {text} -->" in shown and f"<!-- {text} -->" in output.read_text()
        for text in ("does not decay", "Muon", "0.26", "frozen", ".head.bias")
    )
