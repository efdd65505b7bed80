"""The expected figures of steps, and how large differences may be."""

import json
import pathlib
from importlib.metadata import version
from typing import Any

from benchmarks.accelerators.devices import PLATFORMS


PATH = pathlib.Path(__file__).parent / "figures.json"

Figures = dict[str, Any]

# What is compared, in words, and the difference that is ignored even in small figures.
COMPARED = {
    "least": ("moved in the cheapest branch", "sizes of the parameters", 0.005),
    "most": ("moved", "sizes of the parameters", 0.005),
    "temporary": ("temporary memory", "sizes of the parameters", 0.005),
    "kernels": ("kernels", "", 1),
}
SLACK, SLACK_OF_ANOTHER_RELEASE = 0.02, 0.1
SLACK_OF_LIMIT = 0.1  # for partial sums, in sizes of the parameters


def read() -> dict[str, Figures]:
    """By platform: the versions of the compiler, and the figures of each row."""
    return json.loads(PATH.read_text())


def write(platform: str, rows: dict[str, Figures]) -> None:
    """Replaces the figures of a platform. Each row is a line."""
    figures = read() if PATH.exists() else {}
    figures[platform] = {"versions": versions(platform), "rows": rows}
    parts = []
    for name, of_platform in sorted(figures.items()):
        lines = ",\n".join(
            f"   {json.dumps(row)}: {json.dumps(found)}"
            for row, found in of_platform["rows"].items()
        )
        about = json.dumps(of_platform["versions"])
        parts.append(
            f' "{name}": {{\n  "versions": {about},\n  "rows": {{\n{lines}\n  }}'
        )
    PATH.write_text("{\n" + "\n },\n".join(parts) + "\n }\n}\n")


def versions(platform: str) -> dict[str, str]:
    """The versions of the packages that compile for a platform."""
    names = ("jax", "libtpu") if platform == "tpu" else ("jax",)
    return {name: version(name) for name in names}


def minor(release: str) -> str:
    """The minor release: `"0.12"` for `"0.12.0.1"`."""
    return ".".join(release.split(".")[:2])


def differences(
    row: str, platform: str, found: Figures, expected: Figures, is_same_release: bool
) -> list[str]:
    """Describes each figure that differs from the expected one.

    With another minor release of JAX, more slack is allowed, and smaller figures are
    accepted.
    """
    if "failure" in found:
        return [f"{row} does not compile for {PLATFORMS[platform].title}: {found}"]
    slack = SLACK if is_same_release else SLACK_OF_ANOTHER_RELEASE
    lines = []
    for key, (what, unit, least) in COMPARED.items():
        now, before = found[key], expected[key]
        is_more = now > before
        if abs(now - before) <= slack * before + least:
            continue
        if is_more or is_same_release:
            lines.append(
                f"{row} on {PLATFORMS[platform].title}: {what} {now:g} {unit}".rstrip()
                + f", expected {before:g} with {slack:.0%} of slack"
                + ("" if is_more else " (less is better: write it down)")
            )
    return lines


def above_the_limit(name: str, platform: str, found: Figures, more: int) -> str:
    """Describes what a row moves, if that is more than its limit and `more` arrays."""
    title = PLATFORMS[platform].title
    if "failure" in found:
        return f"{name} does not compile for {title}: {found}"
    limit = found["limit"] + more
    if found["most"] <= limit + SLACK_OF_LIMIT:
        return ""
    return (
        f"{name} on {title}: moved {found['most']:g} sizes of the parameters, expected "
        f"at most {limit:g}: each argument once, each result once, and {more} more. "
        "Join what reads an array twice, or name the reason in MORE_MOVED in "
        "tests/compiled/rows.py"
    )
