"""The pages of the documentation, and their blocks of code."""

import pathlib
import re
import textwrap
from typing import NamedTuple


ROOT = pathlib.Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))

_FENCE = re.compile(
    r"^(?P<indent>[ \t]*)(?P<fence>`{3,}|~{3,})(?P<info>[^\n`]*)\n(?P<code>.*?)"
    r"^(?P=indent)(?P=fence)[ \t]*$",
    re.DOTALL | re.MULTILINE,
)


class Block(NamedTuple):
    """A fenced code block, and the number of its first line."""

    info: str
    code: str
    line: int


def name(page: pathlib.Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: pathlib.Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            match["info"].strip(),
            textwrap.dedent(match["code"]),
            text.count("\n", 0, match.start("code")) + 1,
        )
        for match in _FENCE.finditer(text)
    ]


def same_names(page: pathlib.Path) -> list[str]:
    """The names in lists of names that are the same, such as "- `tree`: `add`, `sub`"."""
    found = re.findall(r"^- `(\w+)`: ((?:`\w+`,?\s+)+)", prose(page), re.MULTILINE)
    return [f"{room}.{n}" for room, names in found for n in re.findall(r"\w+", names)]


def prose(page: pathlib.Path) -> str:
    """The text of a page without its fenced code blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))
