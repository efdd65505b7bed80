r"""Formulas become MathML when the site is built, so that a page needs no script.

`pymdownx.arithmatex` marks the formulas of pages and of docstrings as `\(...\)` and
`\[...\]`. A formula that has no MathML stops the build.
"""

import html
import re

from math_core import LatexError, LatexToMathML
from mkdocs.exceptions import PluginError
from mkdocs.structure.pages import Page


_CONVERTER = LatexToMathML(fancy_error=False)
_INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
# The sign of a root has a smallest height, and hangs low over letters that are smaller.
_STRUT = '<mspace width="0" height="0.75em" depth="0.15em"/>'
_DISPLAY = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]</div>', re.DOTALL)


def on_page_content(content: str, page: Page, **kwargs: object) -> str:
    where = page.file.src_uri
    content = _DISPLAY.sub(lambda found: _display(found[1], where), content)
    return _INLINE.sub(lambda found: mathml(found[1], where), content)


def _display(formula: str, where: str) -> str:
    # In the index of the search box, the symbols would be one long word.
    found = mathml(formula, where, display=True)
    return f'<div class="formula" data-search-exclude>{found}</div>'


def mathml(formula: str, where: str, *, display: bool = False) -> str:
    """The formula, which is escaped LaTeX, of the page `where`."""
    latex = html.unescape(formula)
    try:
        found = _CONVERTER.convert_with_local_state(latex, displaystyle=display)
    except LatexError as error:
        raise PluginError(
            f"{where}: the formula {latex.strip()!r} has no MathML: {error}"
        ) from error
    return found.replace("<msqrt>", f"<msqrt>{_STRUT}")
