"""The scripts of the gallery, run as a reader runs them: fewer steps; and their page."""

import os
import pathlib
import re
import runpy
import sys
from xml.etree import ElementTree

import matplotlib.pyplot as plt
import pytest


ROOT = pathlib.Path(__file__).parents[2]
DOCS = ROOT / "docs"
SCRIPTS = sorted((DOCS / "examples" / "gallery").glob("*.py"))
PAGE = DOCS / "gallery.md"
LINES = 110  # what is read in one go

# By script: how many steps to take, what it prints, and what must be true of the numbers.
RESULTS = {
    "diffusion": (
        1000,
        r"data: (\S+) with the last weights,\n(\S+) with their average",
        lambda last, average: average < last < 0.1,
    ),
    "fine_tuning": (
        30,
        r"frozen: (\S+) % right, (\S+) bytes of state\n.*, (\S+) bytes",
        lambda right, ours, whole: right > 70 and ours < 0.01 * whole,
    ),
    "gan": (
        300,
        r"(\d) of 8 clusters found, (\d+)% of the points",
        lambda clusters, share: clusters >= 4 and share > 30,
    ),
    "hypergradients": (
        15,
        r"loss after 40 steps: (\S+), then (\S+)",
        lambda first, last: last < 0.8 * first,
    ),
    "language_model": (
        20,
        r"(\S+) bytes per parameter, (\S+) bits(?s:.*?): (\S+) bytes.*, (\S+) bits",
        lambda size, loss, half, of_half: (
            size == 16 and half < 8.5 and loss < 6 and abs(of_half - loss) < 0.06
        ),
    ),
    "neural_ode": (
        100,
        r"loss (\S+); (\S+) from a swing",
        lambda loss, error: loss < 0.01 and error < 0.5,
    ),
    "optimistix_solve": (
        4,
        r"loss: (\S+), then (\S+) at a penalty",
        lambda first, last: last < first < 0.7,
    ),
    "physics_informed": (
        60,
        r"(\S+)% from the exact solution\n.* (\S+)% from",
        lambda adam, lbfgs: lbfgs < adam,
    ),
    "population": (
        100,
        r"best loss (\S+), at a learning rate of (\S+)",
        lambda loss, rate: loss < 0.8 and 0.01 < rate < 0.5,
    ),
    "recurrent": (
        100,
        r"loss (\S+); off by less than 0.5 for (\d+) steps",
        lambda loss, count: loss < 0.01 and count > 0,
    ),
    "several_devices": (
        20,
        r"(\S+)% read.*, (\S+) bytes(?s:.*): (\S+)% read.*, (\S+) bytes",
        lambda right, size, same, shard: (
            right > 70 and abs(same - right) < 1 and shard < 0.26 * size
        ),
    ),
    "vision_transformer": (
        60,
        r"AdamW: (\S+) %.*\nMuon and AdamW: (\S+) %",
        lambda adamw, muon: adamw > 50 and muon > 50,
    ),
}


def test_every_script_has_a_card_a_picture_and_a_result():
    names = [script.stem for script in SCRIPTS]
    assert sorted(RESULTS) == names
    for name in names:
        assert f"](examples/gallery/{name}.py)" in PAGE.read_text()
        assert f"](images/gallery/{name}.svg)" in PAGE.read_text()
        assert f"{{ #{name} }}" in PAGE.read_text()
    pictures = {picture.stem for picture in (DOCS / "images" / "gallery").iterdir()}
    assert pictures == set(names)


def test_every_script_is_short():
    assert not [s.name for s in SCRIPTS if len(s.read_text().splitlines()) > LINES]


def stripped(code):
    return "\n".join(line.strip() for line in code.strip().splitlines())


def test_the_page_shows_lines_of_its_scripts():
    """Each paragraph of code is in the script of its card, except for indentation."""
    places = re.findall(r"^## .*\{ #(\w+) \}$", PAGE.read_text(), re.MULTILINE)
    scripts = {script.stem: script for script in (DOCS / "examples").rglob("*.py")}
    shown = re.findall(
        r"^```py\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE
    )
    assert len(shown) == len(places)
    for name, block in zip(places, shown, strict=True):
        source = stripped(scripts[name].read_text())
        for paragraph in block.split("\n\n"):
            assert stripped(paragraph) in source, (name, paragraph)


@pytest.mark.slow
@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.usefixtures("standard_promotion")
def test_it_trains_and_draws(name, tmp_path, monkeypatch, capsys):
    """In this process: to start another one takes as long as most of these trainings."""
    if name == "neural_ode":
        pytest.importorskip("diffrax")
    steps, pattern, is_good = RESULTS[name]
    output = tmp_path / "picture.svg"
    script = str(DOCS / "examples" / "gallery" / f"{name}.py")
    command = [script, "--steps", str(steps), "--output", str(output)]
    monkeypatch.setattr(sys, "argv", command)
    monkeypatch.setenv("XLA_FLAGS", os.environ["XLA_FLAGS"])  # a script sets others
    with plt.rc_context():
        runpy.run_path(script, run_name="__main__")
    plt.close("all")
    printed = capsys.readouterr().out
    found = re.search(pattern, printed)
    assert found, printed
    numbers = [float(number.replace(",", "")) for number in found.groups()]
    assert is_good(*numbers), printed
    assert ElementTree.parse(output).getroot().tag.endswith("svg")
