"""The picture on the page about schedules."""

import pathlib
import subprocess
import sys

import pytest

from eqopt import schedules


ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.slow
def test_draws_what_the_page_shows(tmp_path):
    output = tmp_path / "schedules.svg"
    script = ROOT / "docs" / "examples" / "draw_schedules.py"
    subprocess.run([sys.executable, script, output], check=True)
    shown = (ROOT / "docs" / "images" / "schedules.svg").read_text()
    assert all(
        f"<!-- {text} -->" in shown and f"<!-- {text} -->" in output.read_text()
        for text in ("after a warm-up", "SGDR", "1-sqrt", "triangular2", "a * b")
    )


def test_every_schedule_is_drawn():
    script = (ROOT / "docs" / "examples" / "draw_schedules.py").read_text()
    # Schedules with a state depend on the loss, and operators make the others.
    left_out = {"Clipped", "Product", "Sum", "ReduceOnPlateau", "ReduceOnPlateauState"}
    names = {name for name in dir(schedules) if not name.startswith("Abstract")}
    assert all(f"{name}(" in script for name in names - left_out)
