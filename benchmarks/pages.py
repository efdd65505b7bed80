"""Writes the parts of pages that commands generate."""

import pathlib
from collections.abc import Iterable, Mapping, Sequence


def markdown(
    head: Sequence[str], lines: Iterable[Sequence[str]], texts: int = 1
) -> str:
    """A table, with numbers in all columns but the first `texts`."""
    of = lambda cells: f"| {' | '.join(cells)} |"
    under = "|:--" * texts + "|--:" * (len(head) - texts) + "|"
    return "\n".join([of(head), under, *map(of, lines)])


def with_parts(page: pathlib.Path, parts: Mapping[str, str]) -> str:
    """The page with each part between `<!-- name -->` and `<!-- end of name -->`."""
    text = page.read_text()
    for name, part in parts.items():
        before, begin, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- end of {name} -->\n")
        assert begin and end, f"{page} has no place for {name}"
        text = f"{before}{begin}\n{part}\n\n{end}{after}"
    return text


def write_parts(page: pathlib.Path, parts: Mapping[str, str]) -> None:
    """Writes the parts into the page."""
    page.write_text(with_parts(page, parts))
