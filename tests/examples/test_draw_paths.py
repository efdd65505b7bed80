"""The pictures of paths on the pages of the optimizers."""

import pathlib
import re
import subprocess
import sys

import pytest
from tests.methods import BY_FAMILY


ROOT = pathlib.Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"


@pytest.mark.parametrize("family", BY_FAMILY)
def test_the_sheet_of_a_family_has_its_optimizers(family):
    shown = (IMAGES / f"paths_{family}.svg").read_text()
    names = re.findall(r'class="name">(\w+)<', shown)
    assert names == [method.name for method in BY_FAMILY[family]]
    assert shown.count('class="path"') == 2 * len(names)
    page = (ROOT / "docs" / "api" / "optimizers" / f"{family}.md").read_text()
    assert f"(../../images/paths_{family}.svg)" in page
    assert len(shown) < 60_000


@pytest.mark.slow
def test_draws_what_the_page_shows(tmp_path):
    command = [sys.executable, "-m", "docs.examples.draw_paths", tmp_path, "polyak"]
    subprocess.run(command, check=True, cwd=ROOT)
    drawn = (tmp_path / "paths_polyak.svg").read_text()
    shown = (IMAGES / "paths_polyak.svg").read_text()
    first = re.compile(r'points="([-\d.]+,[-\d.]+)[^"]*" class="path"')
    assert first.findall(drawn) == first.findall(shown)
    assert drawn.count("\n") == shown.count("\n")
