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
@pytest.mark.parametrize("name", ["gallery", "scheduling", "paths"])
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
