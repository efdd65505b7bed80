"""Phrases that the documentation and the comments avoid, and how to find them.

`python -m tests.docs.language` prints the phrases, which `test_language.py` rejects, and
long sentences, which may be hard to read. CONTRIBUTING.md has the rules.
"""

import ast
import functools
import io
import pathlib
import re
import tokenize
from collections.abc import Iterator
from typing import NamedTuple

from .pages import DOCS, ROOT


# A regular expression for each phrase, and what to write instead. A space stands for any
# white space, so that a phrase is found across a line break.
INSTEAD = {
    r"(that|those) of": 'name the thing: "the norm of `x`"',
    r"likewise": '"also", or say it again',
    r"in (the|its|their) place( of)?": '"instead of"',
    r"(inside|outside) of": '"inside", "outside"',
    r"(of|for) all else": '"everything else"',
    r"all else": '"everything else"',
    r"(nothing|none) but": '"only"',
    r"(says?|knows?|sees?) (nothing )?of": '"about"',
    r"(learning rate|state|axis|class|field|name|page)s? of (its|their) own": (
        '"its own state"'
    ),
    r"(would|will) do(?= for|\s*[.,:;)])": '"works", "is enough"',
    r"(is|are|was|were) to be": '"must be", "should be", "will be"',
    r"(left|leave|leaves|leaving) out": '"skip", "omit", "exclude"',
    r"beside": '"next to", "in addition to"',
    r"hand(s|ed)? (down|on|over)": '"pass on"',
    r"goes on|go on|going on": '"continues"',
    r"(what|all) there is": "name it",
    r"wants(?! to)": '"needs", "expects"',
    r"(no|every|some)body|whoever": "say who: the caller, the user",
    r"gives? out|comes? out": '"returns"',
    r"hence|thus|thereby|therein|thereof|whereof|wherein|whereby": '"so", "which"',
    r"afresh": '"again", "from scratch"',
    r"let through": '"not checked"',
}

PATTERN = re.compile(
    r"\b(?:"
    + "|".join(f"(?:{phrase})" for phrase in INSTEAD).replace(" ", r"\s+")
    + r")\b",
    re.IGNORECASE,
)
LONG = 40  # words
SOURCES = "src", "tests", "benchmarks"

# The only place for "those of" is a list of arguments. It may end with "The others are
# those of ...", and its items may be like "`eps`: those of ...".
_ARGUMENTS = re.compile(r"(the\s+others\s+are|^ *- [x, ]+:)\s+\Z", re.I | re.M)


class Finding(NamedTuple):
    file: str
    line: int
    phrase: str
    instead: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.phrase!r}: write {self.instead}"


# These quote the phrases.
QUOTING = {ROOT / "tests/docs" / name for name in ("language.py", "test_language.py")}


def files() -> list[pathlib.Path]:
    """All pages, and all modules of the library, its tests and its benchmarks."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")]
    modules = {x for name in SOURCES for x in (ROOT / name).rglob("*.py")} - QUOTING
    return sorted(pages) + sorted(modules)


@functools.cache  # two tests read all files
def prose(text: str, suffix: str) -> str:
    """The text with a blank in place of each character that is not prose."""
    return _prose_of_python(text) if suffix == ".py" else _prose_of_markdown(text)


def _blank(text: str) -> str:
    return re.sub(r"\S", " ", text)


# Fenced code, comments, directives, formulas, targets of links, and code within a line.
_NOT_PROSE = re.compile(
    r"^[ \t]*(?P<fence>`{3,}|~{3,}).*?^[ \t]*(?P=fence)[ \t]*$"
    r"|<!--.*?-->|^:::.*\n(?: +.*\n)*|\$\$.*?\$\$|\]\([^)]*\)|\]\[[^]]*\]|`[^`\n]*`",
    re.DOTALL | re.MULTILINE,
)


def _prose_of_markdown(text: str) -> str:
    return _NOT_PROSE.sub(lambda match: _code(match[0]), text)


def _code(text: str) -> str:
    """Code in a sentence counts as one word; any other code counts as none."""
    if text[0] == "`" and not text.startswith("```"):
        return "x" + " " * (len(text) - 1)
    return _blank(text)


def _prose_of_python(text: str) -> str:
    lines = [_blank(line) for line in text.split("\n")]
    whole = text.split("\n")
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                assert node.end_lineno is not None
                for row in range(node.lineno - 1, node.end_lineno):
                    lines[row] = re.sub(r'[rR]?"""', lambda m: _blank(m[0]), whole[row])
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start[0] - 1, token.start[1]
            comment = token.string.replace("#", " ", 1)
            lines[row] = lines[row][:column] + comment
    return _prose_of_markdown("\n".join(lines))


def findings(name: str, text: str) -> Iterator[Finding]:
    read = prose(text, pathlib.PurePath(name).suffix)
    for match in PATTERN.finditer(read):
        if _ARGUMENTS.search(read[max(0, match.start() - 200) : match.start()]):
            continue
        phrase = " ".join(match[0].split())
        line = read.count("\n", 0, match.start()) + 1
        yield Finding(name, line, phrase, instead_of(phrase))


def instead_of(phrase: str) -> str:
    for pattern, instead in INSTEAD.items():
        if re.fullmatch(pattern, phrase, re.IGNORECASE):
            return instead
    return "something else"  # decided by a lookahead, which a full match does not see


def long_sentences(name: str, text: str) -> Iterator[str]:
    """Sentences of more than `LONG` words outside tables."""
    read = prose(text, pathlib.PurePath(name).suffix)
    for paragraph in re.finditer(r"^(?:(?! *(?:[|#]|$)).+\n)+", read, re.MULTILINE):
        start = paragraph.start()
        items = re.split(r"(?m)^(?= *(?:[-*]|\d+\.) )", paragraph[0])
        for item in items:
            for sentence in re.split(r"(?<=[.:;!?])\s", item):
                if len(sentence.split()) > LONG:
                    line = read.count("\n", 0, start) + 1
                    yield f"{name}:{line}: a sentence of {len(sentence.split())} words"
                start += len(sentence) + 1
            start -= 1


def main() -> None:
    for file in files():
        name, text = str(file.relative_to(ROOT)), file.read_text(encoding="utf-8")
        for finding in findings(name, text):
            print(finding)
        for sentence in long_sentences(name, text):
            print(sentence)


if __name__ == "__main__":
    main()
