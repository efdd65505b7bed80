"""Makes a page for each optimizer when the site is built.

A row of a table in `api/optimizers/index.md` is an optimizer. Its page has its docstring,
what the tables of other pages say about it, and the other public classes of its source
file: its parts and their states. If a file has several optimizers, a class is on the page
of the first one that uses it.
"""

import ast
import functools
import pathlib
import re
from typing import Any


DOCS = pathlib.Path(__file__).parents[1]
SOURCES = DOCS.parent / "src" / "eqopt"


def families() -> dict[str, list[str]]:
    """The names of the optimizers, by the heading above their tables."""
    sections = _read("api/optimizers/index.md").split("\n## ")[1:]
    row = r"^\| \[`(\w+)`\]\[eqopt\.\w+\] \|"
    return {s.partition("\n")[0]: re.findall(row, s, re.MULTILINE) for s in sections}


def path(name: str) -> str:
    return f"api/optimizers/{name}.md"


def pages() -> dict[str, str]:
    """The text of each page, by its path."""
    found, codes = {}, _codes()
    parts: dict[str, list[str]] = {
        x: [] for names in families().values() for x in names
    }
    for part in sorted(codes.keys() - parts.keys()):  # "X" is before "XState"
        of_file = [x for x in parts if codes[x][0] == codes[part][0]]
        used = re.compile(rf"\b{part.removesuffix('State')}\b")
        users = [x for x in of_file if used.search(codes[x][1])]
        for first in (users or of_file)[:1]:
            parts[first].append(part)

    def entry(name: str, level: int) -> str:
        shown = "eval_params" if "def eval_params(" in codes[name][1] else ""
        options = f"heading_level: {level}\n      members: [{shown}]"
        return f"::: eqopt.{name}\n    options:\n      {options}"

    for name, of in parts.items():
        blocks = [f"---\ntitle: {name}\n---", entry(name, 1), *_measured(name)]
        blocks += ["## Parts"] * bool(of) + [entry(part, 3) for part in of]
        found[path(name)] = "\n\n".join(blocks)
    return found


def _codes() -> dict[str, tuple[pathlib.Path, str]]:
    """The file and the code of each public class under `_optimizers`."""
    stub = (SOURCES / "__init__.pyi").read_text(encoding="utf-8")
    public, found = {*re.findall(r"\w+", stub)}, {}
    for file in sorted((SOURCES / "_optimizers").glob("*/*.py")):
        code = file.read_text(encoding="utf-8")
        for node in ast.parse(code).body:
            if isinstance(node, ast.ClassDef) and node.name in public:
                lines = code.splitlines()[node.lineno - 1 : node.end_lineno]
                found[node.name] = file, "\n".join(lines)
    return found


def _measured(name: str) -> list[str]:
    """What was measured: a list of facts, and the steps on each workload."""
    known = _rows("api/optimizers/index.md", "Start with")[name]
    of_matrix, _, of_vector = known["State"].rstrip(")").partition(" (")
    vectors = f" of a matrix, {of_vector} of a vector" if of_vector else ""
    facts = [
        f"**Learning rate:** start with {known['Start with']}",
        f"**State:** {of_matrix} bytes per float32 parameter{vectors}",
    ]
    steps = _rows("workloads.md", "Digits")
    if found := _rows("which_optimizer.md", "Best rates").get(name):
        reached = f"reached on {found['Reached'].strip('*')} of {len(steps[name])}"
        if found["Steps"] != "no":
            reached += f", after {found['Steps']} of AdamW's steps (median)"
        time = f"{found['Time of a step']} of AdamW's, with the gradient"
        facts[0] += f"; the best on the workloads below: {found['Best rates']}"
        facts += [f"**AdamW's loss:** {reached}", f"**Time of a step:** {time}"]
    if timed := _rows("benchmarks.md", "range").get(name):
        now = _rows("benchmarks.md", "ratio now").get(name, {})
        ratio = now.get("ratio now", timed["ratio"])
        other = timed["compared with"].removeprefix("its ") or name
        link = f"[Optax's {other}](../../benchmarks.md)"
        facts.append(f"**Time of an update:** {ratio} of {link}, on a CPU")
    blocks = ["## Measured", "\n".join(f"- {fact}." for fact in facts)]
    if name in steps:
        table = [["Share of all steps", *steps[name]]]
        table += [[":--", *["--:"] * len(steps[name])]]
        table += [[of, *steps[of].values()] for of in dict.fromkeys([name, "AdamW"])]
        blocks.append("\n".join(f"| {' | '.join(cells)} |" for cells in table))
        blocks.append(
            "The share of all steps after which it has the loss that AdamW has at 80 %. "
            "In parentheses is its last loss, if it never does. "
            "[Which optimizer?](../../which_optimizer.md) compares all optimizers, and "
            "[Seven workloads](../../workloads.md) says how they ran."
        )
    return blocks


@functools.cache  # for each build, see `on_config`
def _rows(page: str, column: str) -> dict[str, dict[str, str]]:
    """Rows of tables with this column, by optimizer: their other cells, by column.

    If an optimizer is in several of these tables, its first row.
    """
    found: dict[str, dict[str, str]] = {}
    head: list[str] = []
    for line in re.findall(r"^(?:\| (.*?) \|)?$", _read(page), re.MULTILINE):
        first, *cells = (cell.strip() for cell in line.split("|"))
        if not cells or column in cells:
            head = cells
        elif head and (name := re.search(r"\w+", first)):
            found.setdefault(name[0], dict(zip(head, cells, strict=True)))
    return found


def _read(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def on_config(config: Any) -> None:
    """Adds the pages to the navigation, below the overview."""
    _rows.cache_clear()
    [api] = [items["API"] for items in config.nav if "API" in items]
    [overview] = [items["Optimizers"] for items in api if "Optimizers" in items]
    overview[1:] = [{title: [*map(path, names)]} for title, names in families().items()]


def on_files(files: Any, *, config: Any) -> None:
    from mkdocs.structure.files import File  # tests read `pages` without MkDocs

    for uri, text in pages().items():
        files.append(File.generated(config, uri, content=text))


_PAPER = re.compile(r'<details class="cite">.*?</details>\s*', re.DOTALL)


def on_page_content(content: str, *, page: Any, **kwargs: object) -> str:
    """Moves the paper of an optimizer below what was measured."""
    paper = _PAPER.search(content)
    optimizers = {path(name) for names in families().values() for name in names}
    if paper is None or page.file.src_uri not in optimizers:
        return content
    content = content.replace(paper[0], "", 1)
    before, parts, after = content.partition('<h2 id="parts"')
    return f"{before}{paper[0]}{parts}{after}"
