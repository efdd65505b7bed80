"""Formulas are MathML: what is refused, and what a browser makes of the rest."""

import re
import types

import pytest

from .browser import in_chromium, needs_chromium
from .site import build, module, site as site


INLINE = r'<p>for <span class="arithmatex">\(\beta_1 &lt; 1\)</span>.</p>'
DISPLAY = r'<div class="arithmatex">\[\begin{aligned} a &amp;= b \\ c &amp;= d \end{aligned}\]</div>'  # noqa: E501


@pytest.fixture
def hook():
    for package in ("math_core", "mkdocs"):
        pytest.importorskip(package, reason="install eqopt[docs] to build the site")
    return module("_hooks/mathematics.py")


@pytest.fixture
def page():
    return types.SimpleNamespace(file=types.SimpleNamespace(src_uri="api/base.md"))


def test_inline(hook, page):
    html = hook.on_page_content(INLINE, page)
    assert re.fullmatch("<p>for <math>.*β.*&lt;.*</math>.</p>", html)


def test_display(hook, page):
    html = hook.on_page_content(DISPLAY, page)
    assert html.count("<mtr>") == 2
    assert re.fullmatch('<div class="formula".*<math display="block">.*</div>', html)


def test_roots_have_the_height_of_a_line(hook):
    root = hook.mathml(r"\sqrt{\nu}", "api/base.md")
    assert re.search('<msqrt><mspace width="0" height="0.75em".*?/><mi>.</mi>', root)


def test_an_unknown_command_is_refused(hook, page):
    from mkdocs.exceptions import PluginError

    with pytest.raises(PluginError, match=r"api/base\.md: .*\\nosuchcommand") as error:
        hook.on_page_content(INLINE.replace(r"\beta", r"\nosuchcommand"), page)
    assert "has no MathML" in str(error.value)


@pytest.mark.slow
def test_an_unknown_command_stops_the_build(hook, tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(
        r"# Page" "\n\n" r"So $\nosuchcommand$."
    )
    config = tmp_path / "mkdocs.yml"
    config.write_text(
        "site_name: one page\n"
        "markdown_extensions: [{pymdownx.arithmatex: {generic: true}}]\n"
        f"hooks: [{hook.__file__}]\n"
    )
    with pytest.raises(AssertionError, match="nosuchcommand"):
        build(tmp_path / "site", config)
    assert not (tmp_path / "site" / "index.html").exists()


MEASURE = """
  await document.fonts.ready;
  const root = document.documentElement;
  return {
    loaded: performance.getEntriesByType("resource").map(entry => entry.name),
    font: [...document.fonts].some(
      font => font.family.includes("STIX Two Math") && font.status === "loaded"),
    heights: [...document.querySelectorAll("article math")].map(
      formula => formula.getBoundingClientRect().height),
    overflow: root.scrollWidth - root.clientWidth,
    scrolled: [...document.querySelectorAll(".formula")].some(
      formula => formula.scrollWidth > formula.clientWidth),
    rows: [...document.querySelectorAll("article mtable")].map(table =>
      [...table.querySelectorAll(":scope > mtr")].map(
        row => row.getBoundingClientRect().top)),
  };
"""


@needs_chromium
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["optimizers/parameter_free", "optimizers/matrix", "schedules", "losses"]
)
def test_in_a_browser(site, tmp_path, name):
    """From the disk, on a screen of 400 pixels."""
    measured = in_chromium(site / "api" / f"{name}.html", MEASURE, tmp_path)
    assert all(url.startswith("file:") for url in measured["loaded"])
    assert measured["font"]
    assert measured["heights"] and min(measured["heights"]) > 5
    assert measured["overflow"] == 0 and measured["scrolled"]
    for tops in measured["rows"]:
        assert tops == sorted(set(tops)), "rows stand below one another"
