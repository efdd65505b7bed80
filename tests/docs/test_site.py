"""The built site is complete: it needs no network, no script for formulas, no server."""

import pathlib
import re
import urllib.parse

import pytest

from .site import Html, site as site


pytestmark = pytest.mark.slow

OUTSIDE = re.compile(r"(https?:)?//")


@pytest.fixture(scope="module")
def pages(site) -> dict[pathlib.Path, Html]:
    return {path: Html(path) for path in sorted(site.rglob("*.html"))}


def test_no_page_needs_the_network(site, pages):
    loaded = [
        (str(path.relative_to(site)), element)
        for path, page in pages.items()
        for element in page.elements
        if OUTSIDE.match(element.attributes.get("src", ""))
        or (element.tag == "link" and OUTSIDE.match(element.attributes["href"]))
    ]
    assert not loaded
    for path in site.rglob("*.css"):
        found = re.findall(
            r"""(?:url\(|@import\s)\s*['"]?([^'")]*)""", path.read_text()
        )
        assert not [url for url in found if OUTSIDE.match(url)], path
    # Material takes what draws these from another server.
    assert not [
        str(path)
        for path, page in pages.items()
        for element in page.elements
        if "mermaid" in element.attributes.get("class", "").split()
    ]


def test_every_formula_is_mathml(site, pages):
    raw = {
        str(path.relative_to(site)): found
        for path, page in pages.items()
        if (found := re.findall(r"\\[(\[a-zA-Z].{,20}|\$[^$\n]{,40}\$", page.text))
    }
    assert not raw
    tags = [element.tag for page in pages.values() for element in page.elements]
    assert tags.count("math") > 1000 and tags.count("mtable") > 50
    assert "merror" not in tags


def test_links_lead_to_something(site, pages):
    """Also links between entries of the API, which Markdown does not check."""
    dead = []
    for path, page in pages.items():
        if path.name == "404.html":  # its links begin at the root of a server
            continue
        for element in page.elements:
            link = element.attributes.get("href", element.attributes.get("src", ""))
            if re.match(r"\w+:|//", link):
                continue
            target, _, anchor = urllib.parse.unquote(link).partition("#")
            where = (path.parent / target.partition("?")[0]).resolve()
            where = where if target else path
            found = where.is_file() and (not anchor or anchor in pages[where].ids)
            if not found:
                dead.append((str(path.relative_to(site)), link))
    assert not dead
