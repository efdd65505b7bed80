"""Results on disk: a file for each workload, with a line for each optimizer."""

import dataclasses
import json
import math
import pathlib
from typing import Any

from .protocol import Cell


FOLDER = pathlib.Path(__file__).parent / "results"


@dataclasses.dataclass(frozen=True)
class Failure:
    """An optimizer that does not run on a workload, and why not."""

    name: str
    failure: str


def read(workload: str) -> dict[str, Cell | Failure]:
    """The results for a workload, by optimizer. An incomplete last line is ignored."""
    path = FOLDER / f"{workload}.jsonl"
    found: dict[str, Cell | Failure] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            fields = json.loads(line)
        except json.JSONDecodeError:
            continue
        kind = Failure if "failure" in fields else Cell
        found[fields["name"]] = kind(**{k: _numbers(v) for k, v in fields.items()})
    return found


def add(workload: str, result: Cell | Failure) -> None:
    """Adds a result atomically. It replaces an older one of the same optimizer."""
    known = {**read(workload), result.name: result}
    lines = [_line(known[name]) for name in sorted(known)]
    path = FOLDER / f"{workload}.jsonl"
    new = path.with_suffix(".new")
    new.write_text("".join(lines))
    new.replace(path)


def read_about() -> dict[str, Any]:
    """The machine, the versions, and the initial losses by workload."""
    path = FOLDER / "about.json"
    return json.loads(path.read_text()) if path.exists() else {}


def write_about(about: dict[str, Any]) -> None:
    (FOLDER / "about.json").write_text(json.dumps(about, indent=1) + "\n")


def _line(result: Cell | Failure) -> str:
    fields = {k: _rounded(v) for k, v in dataclasses.asdict(result).items()}
    return json.dumps(fields, separators=(",", ":"), allow_nan=False) + "\n"


def _rounded(value: Any) -> Any:
    """Rounds to five digits. NaN and infinity become strings: JSON does not have them."""
    if isinstance(value, list):
        return [_rounded(v) for v in value]
    if not isinstance(value, float):
        return value
    return float(f"{value:.5g}") if math.isfinite(value) else str(value)


def _numbers(value: Any) -> Any:
    if isinstance(value, list):
        return [_numbers(v) for v in value]
    return float(value) if value in ("nan", "inf", "-inf") else value
