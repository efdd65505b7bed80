"""The picture on the page about Monte-Carlo estimators."""

import pathlib
import runpy

import pytest


ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.slow
def test_draws_what_the_page_shows(tmp_path):
    """From fewer samples: the curves are another matter."""
    output = tmp_path / "estimators.svg"
    script = runpy.run_path(str(ROOT / "docs" / "examples" / "draw_estimators.py"))
    script["main"].__globals__["NUM_SAMPLES"] = 40
    script["main"](str(output))
    shown = (ROOT / "docs" / "images" / "estimators.svg").read_text()
    for text in ("score function, baseline", "pathwise", "measure-valued, not coupled"):
        assert f"<!-- {text} -->" in shown
        assert f"<!-- {text} -->" in output.read_text()
