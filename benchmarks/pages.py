"""Writes the parts of pages that commands generate."""

import pathlib
from collections.abc import Mapping


def write_parts(page: pathlib.Path, parts: Mapping[str, str]) -> None:
    """Writes each part between `<!-- name -->` and `<!-- end of name -->`."""
    text = page.read_text()
    for name, part in parts.items():
        before, begin, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- end of {name} -->\n")
        assert begin and end, f"{page} has no place for {name}"
        text = f"{before}{begin}\n{part}\n\n{end}{after}"
    page.write_text(text)
