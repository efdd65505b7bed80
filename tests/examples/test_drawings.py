"""The pictures that scripts draw for the pages, as the pages show them."""

import pathlib
import re
import runpy

import pytest
from tests.methods import BY_FAMILY

from eqopt import schedules


ROOT = pathlib.Path(__file__).parents[2]
SCRIPTS = ROOT / "docs" / "examples"
IMAGES = ROOT / "docs" / "images"

# Texts in each picture, which Matplotlib also writes as comments.
TEXTS = {
    "estimators": (
        "score function, baseline",
        "pathwise",
        "measure-valued, not coupled",
    ),
    "groups": ("does not decay", "Muon", "0.26", "frozen", ".head.bias"),
    "losses": ("huber_loss", "log_cosh", "sparsemax_loss", "of a margin"),
    "projections": ("l1_ball(x)", "simplex(x)", "halfspace(x, a, 0.5)", "vector(x, a)"),
    "schedules": ("after a warm-up", "SGDR", "1-sqrt", "triangular2", "a * b"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.usefixtures("standard_promotion")
def test_draws_what_the_page_shows(name, tmp_path):
    output = tmp_path / f"{name}.svg"
    main = runpy.run_path(str(SCRIPTS / f"draw_{name}.py"))["main"]
    # From fewer samples: the texts do not depend on them.
    settings = main.__globals__
    settings["NUM_SAMPLES"] = 40
    if name == "estimators":
        settings["ESTIMATED"]["estimate_cv_coeffs_num_samples"] = 40
    main(str(output))
    for picture in (output, IMAGES / output.name):
        for text in TEXTS[name]:
            assert f"<!-- {text} -->" in picture.read_text()


def test_every_schedule_is_drawn():
    script = (SCRIPTS / "draw_schedules.py").read_text()
    # Schedules with a state depend on the loss, and operators make the others.
    left_out = {"Clipped", "Product", "Sum", "ReduceOnPlateau", "ReduceOnPlateauState"}
    names = {name for name in dir(schedules) if not name.startswith("Abstract")}
    assert all(f"{name}(" in script for name in names - left_out)


@pytest.mark.parametrize("family", BY_FAMILY)
def test_the_sheet_of_a_family_has_its_optimizers(family):
    shown = (IMAGES / f"paths_{family}.svg").read_text()
    names = re.findall(r'class="name">(\w+)<', shown)
    assert names == [method.name for method in BY_FAMILY[family]]
    assert shown.count('class="path"') == 2 * len(names)
    assert f"(images/paths_{family}.svg)" in (ROOT / "docs" / "paths.md").read_text()
    assert len(shown) < 65_000


@pytest.mark.slow
@pytest.mark.usefixtures("standard_promotion")
def test_draws_the_paths_of_the_page(tmp_path):
    runpy.run_module("docs.examples.draw_paths")["main"](tmp_path, "polyak")
    drawn = (tmp_path / "paths_polyak.svg").read_text()
    shown = (IMAGES / "paths_polyak.svg").read_text()
    first = re.compile(r'points="([-\d.]+,[-\d.]+)[^"]*" class="path"')
    assert first.findall(drawn) == first.findall(shown)
    assert drawn.count("\n") == shown.count("\n")
