"""Where the documentation names versions, they are the ones of the package."""

import re
import tomllib

import eqopt
from eqopt.checkpoint._file import _FORMAT

from .pages import DOCS, ROOT


def test_the_changelog_begins_with_this_version():
    page = (DOCS / "changelog.md").read_text()
    versions = re.findall(r"^## (\S+)$", page, re.MULTILINE)
    assert versions[0] == eqopt.__version__


def test_the_changelog_names_the_lowest_versions():
    """The entry of this version has them, in its first paragraph."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lowest = dict(spec.split(">=") for spec in project["dependencies"])
    _, _, latest = (DOCS / "changelog.md").read_text().partition("\n## ")
    python = project["requires-python"].removeprefix(">=")
    for name in (f"Python {python}", f"JAX {lowest['jax']}"):
        assert name in latest
    assert f"Equinox {lowest['equinox']}" in latest


def test_the_citation():
    readme = (ROOT / "README.md").read_text()
    [entry] = re.findall(r"```bibtex\n(.*?)```", readme, re.DOTALL)
    assert f"version = {{{eqopt.__version__}}}" in entry


def test_the_promises():
    page = (DOCS / "promises.md").read_text()
    assert f"version {eqopt.__version__}" in page
    assert f"the number of its format, now {_FORMAT}" in page
    named = re.findall(r"`((?:laws|parity|checkpoint)/\S*)`", page)
    assert len(named) > 10
    for path in named:
        assert (ROOT / "tests" / path).exists(), path
