r"""The explanations of arguments in a docstring, including references to other classes.

Most arguments of an optimizer are passed on to its building blocks, which explain them.
Its docstring names these blocks, in a form that people and this module can read:

    **Arguments:**

    - `learning_rate`: $\eta$, a number, a 0-d array or a schedule.
    - `mask`: see [`eqopt.AdamW`][]. Biases never decay.
    - All others: see [`eqopt.ScaleByAdam`][].

`completed` inserts the explanations in the order of the signature, adds the defaults,
and puts the equations of an optimizer into a box (see `algorithms.py`). `help` and the
documentation both use it; this module is not imported before that.
"""

import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from .algorithms import Argument, with_algorithm


_SECTION = re.compile(
    r"(?P<head>\*\*Arguments:\*\*\n\n)(?P<items>- .*?)(?=\n\n(?!- )\S|\Z)", re.DOTALL
)
_ITEM = re.compile(
    r"- (?:(?P<names>`\w+`(?:,\s+`\w+`)*)|All(?: others)?):\s+(?P<text>.*)", re.DOTALL
)
_SEE = re.compile(
    r"see\s+(?P<classes>\[`[\w.]+`\]\[\](?:(?:,|\s+and)\s+\[`[\w.]+`\]\[\])*)\."
    r"(?:\s+(?P<note>.*))?",
    re.DOTALL,
)
_WIDTH = 84  # of a docstring without its indentation of four


class Explanation(NamedTuple):
    """The explanation of one or more arguments.

    **Attributes:**

    - `names`: the arguments.
    - `text`: the explanation.
    - `origin`: the class whose docstring has the explanation; empty for this class.
    """

    names: tuple[str, ...]
    text: str
    origin: str = ""


class _Item(NamedTuple):
    """An item of the list. Without `names`, it is about all other arguments."""

    names: tuple[str, ...]
    text: str
    see: tuple[str, ...] = ()


def completed(
    doc: str, defaults: Mapping[str, Any], docstring_of: Callable[[str], str]
) -> str:
    """`doc` with an explanation of every argument that has one, and its algorithm.

    A list that cannot be read stays unchanged, and so does its docstring.

    **Arguments:**

    - `doc`: the docstring of a class, as written.
    - `defaults`: the arguments of the class, in their order, and their defaults. Only
        numbers, bools and strings are shown.
    - `docstring_of`: called with the name of a class, such as `"eqopt.ScaleByAdam"`;
        returns its docstring, as written.
    """
    doc = inspect.cleandoc(doc)
    try:
        found = explanations(doc, defaults, docstring_of)
    except ValueError:
        return doc
    items = "\n".join(_with_default(e, defaults) for e in found)
    doc = _SECTION.sub(lambda section: section["head"] + items, doc, count=1)
    arguments = [
        Argument({name: shown(defaults.get(name), True) for name in e.names}, e.text)
        for e in found
    ]
    return with_algorithm(doc, arguments, docstring_of)


def explanations(
    doc: str, arguments: Iterable[str], docstring_of: Callable[[str], str]
) -> list[Explanation]:
    """The explanations of `arguments`, in order, in `doc` or the classes that it names.

    **Raises:**

    A `ValueError` for an item in another form than described above.
    """
    order = [*arguments]
    position = lambda e: min(order.index(n) if n in order else -1 for n in e.names)
    return sorted(_resolved(doc, order, docstring_of), key=position)


def _resolved(
    doc: str, wanted: list[str], docstring_of: Callable[[str], str]
) -> list[Explanation]:
    found = []
    items = _items(doc)
    for item in items:
        if item.names and not item.see:
            found.append(Explanation(item.names, item.text))
        elif item.names:
            elsewhere = _elsewhere(item.see, [*item.names], docstring_of)
            found += [e._replace(text=_extended(e.text, item.text)) for e in elsewhere]
    own = {name for item in items for name in item.names}
    others = [name for item in items if not item.names for name in item.see]
    return found + _elsewhere(others, [w for w in wanted if w not in own], docstring_of)


def _elsewhere(
    classes: Iterable[str], wanted: list[str], docstring_of: Callable[[str], str]
) -> list[Explanation]:
    """The explanations of the arguments `wanted` in the first class that has them."""
    found = []
    for name in classes:
        for e in _resolved(docstring_of(name), wanted, docstring_of):
            names = tuple(n for n in e.names if n in wanted)
            if names:
                found.append(Explanation(names, e.text, e.origin or name))
                wanted = [n for n in wanted if n not in names]
    return found


def _items(doc: str) -> list[_Item]:
    section = _SECTION.search(inspect.cleandoc(doc))
    if section is None:
        return []
    return [_item(written) for written in re.split(r"\n+(?=- )", section["items"])]


def _item(written: str) -> _Item:
    parts = _ITEM.fullmatch(written)
    if parts is None:
        raise ValueError(f"no explanation of arguments: {written!r}")
    names = tuple(re.findall(r"`(\w+)`", parts["names"] or ""))
    see = _SEE.fullmatch(parts["text"])
    if see is None and not names:
        raise ValueError(f"this names no class: {written!r}")
    if see is None:
        return _Item(names, parts["text"])
    return _Item(names, see["note"] or "", tuple(re.findall(r"`([\w.]+)`", see[1])))


def _with_default(e: Explanation, defaults: Mapping[str, Any]) -> str:
    """The item of the list, with the default at the end of its first paragraph."""
    item = f"- {', '.join(f'`{name}`' for name in e.names)}: {e.text}"
    values = [shown(defaults.get(name)) for name in e.names]
    if re.search(r"\bdefault", item, re.IGNORECASE) or not any(values):
        return item
    if len({*values}) == 1:
        sentence = f"{'Defaults' if len(values) == 1 else 'Default'} to {values[0]}."
    elif all(values):
        sentence = f"Default to {', '.join(values[:-1])} and {values[-1]}."
    else:
        pairs = [(n, v) for n, v in zip(e.names, values, strict=True) if v]
        sentence = " ".join(f"`{n}` defaults to {v}." for n, v in pairs)
    first, gap, rest = item.partition("\n\n")
    return _extended(first, sentence) + gap + rest


def _extended(item: str, sentence: str) -> str:
    """An item of a list with `sentence` at its end."""
    for word in sentence.split():
        last = item.rpartition("\n")[2]
        fits = len(last) + 1 + len(word) <= _WIDTH
        item += f" {word}" if fits else f"\n    {word}"
    return item


def shown(default: Any, also_none: bool = False) -> str:
    """A default, for a sentence; empty if only the signature shows it."""
    if default is None and also_none:
        return "`None`"
    if isinstance(default, bool):
        return f"`{default}`"
    if isinstance(default, str):
        return f'`"{default}"`'
    if isinstance(default, int | float) and math.isfinite(default):
        return re.sub(r"e\+?(-?)0*", r"e\1", repr(default))
    return ""
