"""Formulas are MathML: what is refused, and what a browser makes of the rest."""

import re
import types

import pytest

from .site import module, site as site


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


def test_inline_and_display(hook, page):
    html = hook.on_page_content(INLINE, page)
    assert re.fullmatch("<p>for <math>.*β.*&lt;.*</math>.</p>", html)
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
