"""Formulas are MathML: what is refused, and what a browser makes of the rest."""

import json
import re
import shutil
import subprocess
import types

import pytest

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


CHROMIUM = next(
    (
        path
        for name in ("chromium", "chromium-browser", "google-chrome")
        if (path := shutil.which(name))
    ),
    None,
)

# Writes what the browser has made of the page into the page.
MEASURE = """<script>
addEventListener("load", () => document.fonts.ready.then(() => {
  const formulas = [...document.querySelectorAll("article math")];
  const root = document.documentElement;
  const measured = {
    loaded: performance.getEntriesByType("resource").map(entry => entry.name),
    font: [...document.fonts].some(
      font => font.family.includes("STIX Two Math") && font.status === "loaded"),
    heights: formulas.map(formula => formula.getBoundingClientRect().height),
    overflow: root.scrollWidth - root.clientWidth,
    scrolled: [...document.querySelectorAll(".formula")].some(
      formula => formula.scrollWidth > formula.clientWidth),
    rows: [...document.querySelectorAll("article mtable")].map(table =>
      [...table.querySelectorAll(":scope > mtr")].map(
        row => row.getBoundingClientRect().top)),
  };
  const found = document.createElement("pre");
  found.id = "measured";
  found.textContent = JSON.stringify(measured);
  document.body.append(found);
}));
</script></body>"""


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium on the path")
@pytest.mark.parametrize(
    "name", ["optimizers/parameter_free", "optimizers/matrix", "schedules", "losses"]
)
def test_in_a_browser(site, tmp_path, name):
    """From the disk, on a screen of 400 pixels."""
    source = site / "api" / f"{name}.html"
    probe = source.with_suffix(".htm")  # which the tests of all pages do not look at
    probe.write_text(source.read_text().replace("</body>", MEASURE))
    try:
        done = subprocess.run(
            [
                *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu"),
                *("--window-size=400,800", f"--user-data-dir={tmp_path}"),
                *("--virtual-time-budget=10000", "--dump-dom", probe.as_uri()),
            ],
            capture_output=True,
            text=True,
            timeout=120,
        )
    finally:
        probe.unlink()
    found = re.search(r'<pre id="measured">(.*?)</pre>', done.stdout)
    assert found is not None, done.stderr[-2000:]
    measured = json.loads(found[1])
    assert all(url.startswith("file:") for url in measured["loaded"])
    assert measured["font"]
    assert measured["heights"] and min(measured["heights"]) > 5
    assert measured["overflow"] == 0 and measured["scrolled"]
    for tops in measured["rows"]:
        assert tops == sorted(set(tops)), "rows stand below one another"
