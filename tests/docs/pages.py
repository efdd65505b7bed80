"""The pages of the documentation, their blocks of code, and modules among them."""

import importlib.util
import pathlib
import re
import textwrap
import types
from typing import NamedTuple


ROOT = pathlib.Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))


def module(path: str) -> types.ModuleType:
    """A file under `docs`, such as `_griffe/names.py` or an example."""
    spec = importlib.util.spec_from_file_location("loaded", DOCS / path)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


# The text of the pages that are made when the site is built, by path.
OF_OPTIMIZERS: dict[str, str] = module("_hooks/optimizers.py").pages()

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


# An argument with another name in Optax, in a table: "`mask`, was `weight_decay_mask`".
RENAMED = r"`\w+`,? was `\w+`|`\w+` is `\w+`"
