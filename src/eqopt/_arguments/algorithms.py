r"""The algorithm of an optimizer, with the equations from docstrings of its parts.

Each equation is written once. The docstring of an optimizer has the last ones and
refers to the others, in a form that people and this module can read:

    $$p_t = p_{t-1} - \eta_t\, u_t,$$

    where $u_t$ is the update of [`eqopt.ScaleByAdam`][], which has the equations.

`with_algorithm` replaces this by a box with all equations of a step, and says which
arguments their symbols stand for. The equations of a docstring are its first display
formula and what belongs to it:

- before it, a paragraph that does not end a sentence;
- after it, other display formulas, paragraphs that begin with a small letter, with a
  formula or with an option (With `nesterov`, ...), and paragraphs that end with a colon
  before a formula, a list or a table.
"""

import inspect
import itertools
import re
import textwrap
from collections.abc import Callable, Iterable
from typing import NamedTuple


_DISPLAY = re.compile(r"^ *\$\$.+?\$\$", re.DOTALL | re.MULTILINE)
_BLOCK = re.compile(r"\S.*?(?=\n\n|\Z)", re.DOTALL)
_OPTION = re.compile(r"With(?:out)?\s+`(\w+)")
_STEP = re.compile(r"\b(?:p_t|x_\{k\+1\}) &?= ")
_CLASS = re.compile(r"\[`([\w.]+)`\]\[\]")
_SENTENCE = re.compile(r"(?<=[.:])\s+(?=[A-Z\[])")
_ELSEWHERE = re.compile(
    r",\s+which\s+(?P<verb>has|have)\s+the\s+equations?"
    r"(?:\s+and(?P<references>\s+the\s+references?))?"
)
_FORMULA = re.compile(r"\$\$(.+?)\$\$|\$([^$]+)\$", re.DOTALL)
# The symbol at the beginning of an explanation, before its range.
_SYMBOL = re.compile(r"\$([^$]+?)\s*(?:\\in\b|\\ge\b|>|\$)")
# What is remembered from step to step: a letter that is not under an accent.
_TIME = re.compile(r"_[0t](?:\^2)?$")
_BARE = r"(?<![\\A-Za-z])(?<!\\hat )(?<!\\bar )(?<!\\tilde )"
_REMEMBERED = re.compile(_BARE + r"(\\?[A-Za-z]+)_\{(\d,)?t-1\}")
_WIDTH = 80  # without the indentation of the docstring and of the box


class Argument(NamedTuple):
    """One or more arguments of a class that are explained together.

    **Attributes:**

    - `defaults`: by name; empty if only the signature shows it.
    - `text`: the explanation, which begins with their symbols if they have any.
    """

    defaults: dict[str, str]
    text: str

    @property
    def symbol_of(self) -> dict[str, str]:
        """The symbol of each argument, if there are any."""
        found = _SYMBOL.match(self.text)
        symbols = [] if found is None else [found[1]]
        if found and len(self.defaults) > 1:
            symbols = found[1].split(", ")
        named = zip(self.defaults, symbols, strict=True)
        return dict(named) if len(symbols) == len(self.defaults) else {}


def with_algorithm(
    doc: str, arguments: Iterable[Argument], docstring_of: Callable[[str], str]
) -> str:
    """`doc` with its algorithm in a box, or unchanged if it has none.

    **Arguments:**

    - `doc`: the docstring of a class, without indentation.
    - `arguments`: its arguments, in their order.
    - `docstring_of`: called with the name of a class, such as `"eqopt.ScaleByAdam"`;
        returns its docstring, as written.
    """
    doc = _separated(doc)
    start, end = _span(doc)
    own = doc[start:end]
    named = parts(own)
    if not (named or _STEP.search(own)):
        return doc
    arguments = [*arguments]
    names = {name for argument in arguments for name in argument.defaults}
    blocks = [_of_parts(named, names, docstring_of, set()), _blocks(own)]
    if not _STEP.search(own):
        blocks.reverse()
    shown = "\n\n".join(_without_reference(b) for b in itertools.chain(*blocks))
    box = f"{shown}\n\n{_legend(shown, arguments)}"
    box = '!!! abstract "One step"\n\n' + textwrap.indent(box, "    ")
    return doc[:start] + box + doc[end:]


def equations(doc: str) -> str:
    """The equations in a docstring without indentation, with what belongs to them."""
    doc = _separated(doc)
    start, end = _span(doc)
    return doc[start:end]


def _separated(doc: str) -> str:
    """`doc` with blank lines round display formulas."""
    return re.sub(r"\n{3,}", "\n\n", _DISPLAY.sub(r"\n\n\g<0>\n\n", doc))


def _blocks(doc: str) -> list[str]:
    return _BLOCK.findall(doc)


def _span(doc: str) -> tuple[int, int]:
    """Where the equations of a docstring start and end; twice zero if it has none."""
    blocks = [*_BLOCK.finditer(doc.partition("\n\n**")[0])]
    texts = [block[0] for block in blocks]
    formulas = [i for i, text in enumerate(texts) if text.startswith("$$")]
    if not formulas:
        return 0, 0
    first = last = formulas[0]
    while first > 1 and not texts[first - 1].endswith("."):
        first -= 1
    while last + 1 < len(texts) and _belongs(*texts[last : last + 3]):
        last += 1
    return blocks[first].start(), blocks[last].end()


def _belongs(before: str, text: str, after: str = "") -> bool:
    introduced = ("$$", "- ", "| ")
    if text.startswith(introduced[1:]):
        return before.endswith(":")
    if not text.endswith("."):
        return text.startswith("$$") or after.startswith(introduced)
    return bool(re.match(r"[a-z$]|With(?:out)?\s+`", text))


def parts(text: str) -> list[str]:
    """The classes to which equations refer for others."""
    found = []
    for sentence in _SENTENCE.split(text):
        if elsewhere := _ELSEWHERE.search(sentence):
            named = _CLASS.findall(sentence[: elsewhere.start()])
            found += named if elsewhere["verb"] == "have" else named[-1:]
    return found


def _of_parts(
    named: Iterable[str],
    names: set[str],
    docstring_of: Callable[[str], str],
    done: set[str],
) -> list[str]:
    """The equations of classes, each followed by those to which it refers.

    Options that are not among `names` are omitted.
    """
    found = []
    for part in named:
        if part not in done:
            done.add(part)
            own = equations(inspect.cleandoc(docstring_of(part)))
            found += _available(_blocks(own), names)
            found += _of_parts(parts(own), names, docstring_of, done)
    return found


def _available(blocks: list[str], names: set[str]) -> list[str]:
    """The blocks that are not about options other than `names`."""
    kept, introduced = [], False
    for block in blocks:
        option = _OPTION.match(block)
        if option and option[1] not in names:
            introduced = not block.endswith(".")
        elif introduced:
            introduced = False
        else:
            kept.append(block)
    return kept


def _without_reference(block: str) -> str:
    which = lambda found: (
        f", which {found['verb']}{found['references']}" if found["references"] else ""
    )
    if block.startswith("$$") or not _ELSEWHERE.search(block):
        return block
    # A list after a colon is a block of its own.
    return _filled(_ELSEWHERE.sub(which, block))


def _legend(shown: str, arguments: Iterable[Argument]) -> str:
    """What the symbols of the equations stand for."""
    formulas = " ".join(map("".join, _FORMULA.findall(shown)))
    meant, options, others, given = [], [], [], set()
    for argument in arguments:
        symbol_of = argument.symbol_of
        for name, default in argument.defaults.items():
            symbol = symbol_of.get(name)
            if symbol and _occurs(_TIME.sub("", symbol), formulas):
                given.add(symbol)
                value = "" if default in ("", "`None`") else f" ({default})"
                meant.append(f"${symbol}$ is `{name}`{value}")
            elif name == "fallback":
                others.append(_fallback(argument.text))
            elif default and re.search(rf"`{name}\b", shown):
                options.append(f"`{name}` is {default}")
    sentences = []
    after = ", $p_t$ the parameter after step $t$" if _occurs("p_t", formulas) else ""
    for gradient in ("g_t", "G_t"):
        if _occurs(gradient, formulas) and not sentences:
            sentences.append(f"${gradient}$ is the gradient{after}.")
    if zeros := [zero for zero in _start_at_zero(formulas) if zero not in given]:
        sentences.append(f"At the start, ${' = '.join(zeros)} = 0$.")
    if meant:
        sentences.append(f"{', '.join(meant)}.")
    if options:
        sentences.append(f"By default, {', '.join(options)}.")
    return _filled(" ".join(sentences + others))


def _fallback(text: str) -> str:
    """The sentence about parameters that are not matrices, from an explanation."""
    classes = _CLASS.findall(text.partition("efaults to")[2].partition(". ")[0])
    by_default = f", by default [`{classes[0]}`][]" if classes else ""
    return f"Parameters that are not matrices use `fallback`{by_default}."


def _start_at_zero(formulas: str) -> list[str]:
    """What is remembered from step to step, unless formulas say how it starts."""
    pairs = dict.fromkeys(_REMEMBERED.findall(formulas))
    at_times = [
        tuple(f"{x}_{{{number}{t}}}" if number else f"{x}_{t}" for t in "01t")
        for x, number in pairs
        if x not in ("p", "g")
    ]
    return [
        start
        for start, first, now in at_times
        if re.search(rf"{_BARE}{re.escape(now)}\S* &?=", formulas)
        and not (_occurs(start, formulas) or _occurs(first, formulas))
    ]


def _filled(text: str) -> str:
    """A paragraph in lines, which end outside formulas."""
    whole = _FORMULA.sub(lambda found: found[0].replace(" ", "\0"), text)
    lines = textwrap.fill(
        " ".join(whole.split()),
        _WIDTH,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines.replace("\0", " ")


def _occurs(symbol: str, formulas: str) -> bool:
    return bool(re.search(rf"(?<![A-Za-z\\]){re.escape(symbol)}(?![A-Za-z])", formulas))
