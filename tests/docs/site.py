"""The site, built once for all tests that look at it."""

import fcntl
import html.parser
import os
import pathlib
import subprocess
import sys
from typing import NamedTuple

import pytest

from .pages import ROOT, module as module


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> pathlib.Path:
    """The folder of the site. Workers of pytest-xdist share it."""
    for package in ("mkdocs", "material", "mkdocstrings", "math_core"):
        pytest.importorskip(package, reason="install eqopt[docs] to build the site")
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    built = folder / "site"
    with open(folder / "site.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (built / "sitemap.xml.gz").exists():
            build(built)
    return built


def build(folder: pathlib.Path, config: pathlib.Path = ROOT / "mkdocs.yml") -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict"),
            *("--config-file", str(config), "--site-dir", str(folder)),
        ],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


class Element(NamedTuple):
    tag: str
    attributes: dict[str, str]


class Html(html.parser.HTMLParser):
    """The elements of a page, and its text outside code, scripts and styles."""

    VERBATIM = ("code", "pre", "script", "style")

    def __init__(self, path: pathlib.Path):
        super().__init__()
        self.elements: list[Element] = []
        self.text = ""
        self._inside = 0
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        self.elements.append(Element(tag, {k: v or "" for k, v in attrs}))
        self._inside += tag in self.VERBATIM

    def handle_endtag(self, tag):
        self._inside -= tag in self.VERBATIM

    def handle_data(self, data):
        if not self._inside:
            self.text += data

    @property
    def ids(self) -> set[str]:
        return {e.attributes["id"] for e in self.elements if "id" in e.attributes}
