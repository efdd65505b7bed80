"""What the style sheet does with pictures, code and tables, in a browser."""

import pytest

from .browser import in_chromium, needs_chromium
from .site import site as site


pytestmark = [needs_chromium, pytest.mark.slow]

OVERFLOW = """
  const root = document.documentElement;
  const overflow = root.scrollWidth - root.clientWidth;
"""

PICTURES = """
  document.body.setAttribute("data-md-color-scheme", "SCHEME");
  return {
    overflow,
    pictures: [...document.querySelectorAll("article p > img")].map(picture => ({
      width: picture.getBoundingClientRect().width,
      filter: getComputedStyle(picture).filter,
      blend: getComputedStyle(picture).mixBlendMode,
      isWide: picture.classList.contains("wide"),
      scrolls: getComputedStyle(picture.parentElement).overflowX,
    })),
  };
"""


@pytest.mark.parametrize("scheme", ["default", "slate"])
@pytest.mark.parametrize("name", ["gallery", "scheduling", "api/optimizers/adam"])
def test_pictures(site, tmp_path, name, scheme):
    """They can be read on a small screen, and are dark on a dark page."""
    script = OVERFLOW + PICTURES.replace("SCHEME", scheme)
    found = in_chromium(site / f"{name}.html", script, tmp_path)
    assert found["overflow"] == 0 and found["pictures"]
    for picture in found["pictures"]:
        assert picture["width"] >= (680 if picture["isWide"] else 480)
        assert picture["scrolls"] == "auto"
        dark = ("invert(1) hue-rotate(180deg)", "screen")
        expected = dark if scheme == "slate" else ("none", "normal")
        assert (picture["filter"], picture["blend"]) == expected


TABLES = """
  return [...document.querySelectorAll("article table:not([class])")].map(table => {
    const scrolled = table.closest(".md-typeset__scrollwrap");
    const [name, number] = table.querySelectorAll("tbody td");
    const places = () => [name, number].map(cell => cell.getBoundingClientRect().left);
    const before = places();
    scrolled.scrollLeft = 60;
    return { by: scrolled.scrollLeft, before, after: places() };
  });
"""


def test_names_of_rows_stay_where_numbers_are_scrolled(site, tmp_path):
    tables = in_chromium(site / "benchmarks.html", TABLES, tmp_path)
    scrolled = [table for table in tables if table["by"] == 60]
    assert scrolled
    for table in scrolled:
        (name, number), (name_after, number_after) = table["before"], table["after"]
        assert name_after > name - 20 and number_after == number - 60, table
