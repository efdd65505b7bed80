"""Results on disk: a file for each device, with a line for each step."""

import json
import pathlib
from typing import Any


FOLDER = pathlib.Path(__file__).parent / "results"

Row = dict[
    str, Any
]  # `model`, `case`, `library`, and what `counted` or `timed` returns
_KEYS = ("model", "case", "library")


def read(name: str, folder: pathlib.Path = FOLDER) -> tuple[Row, list[Row]]:
    """The device and the versions, and the rows. Both are empty if there is no file."""
    path = folder / f"{name}.json"
    if not path.exists():
        return {}, []
    found = json.loads(path.read_text())
    return found["about"], found["rows"]


def add(
    name: str, about: Row, rows: list[Row], folder: pathlib.Path = FOLDER
) -> pathlib.Path:
    """Adds rows. They replace older ones of the same step."""
    _, known = read(name, folder)
    merged = {_key(row): row for row in known}
    merged |= {_key(row): _rounded(row) for row in rows}
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.json"
    lines = ",\n".join(json.dumps(row) for row in merged.values())
    new = path.with_suffix(".new")
    new.write_text(f'{{"about": {json.dumps(about)}, "rows": [\n{lines}\n]}}\n')
    new.replace(path)
    return path


def _key(row: Row) -> tuple[str, ...]:
    return tuple(row[key] for key in _KEYS)


def _rounded(row: Row) -> Row:
    """Rounds to five digits."""
    rounded = lambda x: float(f"{x:.5g}") if isinstance(x, float) else x
    return {key: rounded(value) for key, value in row.items()}
