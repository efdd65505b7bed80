"""The floor plan of the library, from its imports.

A room is a package of `src/eqopt`, or a module next to these packages. It is one floor
above the highest room from which it imports. This command writes the plan into
`CONTRIBUTING.md`:

    python -m tests.architecture.plan
"""

import ast
import functools
import pathlib
from collections.abc import Iterator

from benchmarks.pages import write_parts

import eqopt


SRC = pathlib.Path(eqopt.__file__).parent
PAGE = SRC.parents[1] / "CONTRIBUTING.md"
NAME = "the floor plan"

Module = tuple[str, ...]


def name_of(path: pathlib.Path) -> Module:
    """The module at `path`: the parts of its full name after `eqopt`."""
    *parts, last = path.relative_to(SRC).with_suffix("").parts
    return (*parts, last) if last != "__init__" else tuple(parts)


PATHS = {name_of(path): path for path in sorted(SRC.rglob("*.py"))}


def imports(module: Module) -> Iterator[Module]:
    """The modules of eqopt that a module imports from, also inside functions.

    A name that is imported from a package counts for the module that defines it, which
    the stub of the package names.
    """
    path = PATHS[module]
    package = module if path.name == "__init__.py" else module[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) + 1 - node.level]
            base += tuple(node.module.split(".")) if node.module else ()
            for alias in node.names:
                yield _origin(base, alias.name)


def _origin(package: Module, name: str) -> Module:
    """The module that defines `name`, which is imported from a module or package."""
    if (*package, name) in PATHS:
        return (*package, name)
    stub = PATHS[package].with_suffix(".pyi")
    if stub.exists():
        for node in ast.parse(stub.read_text()).body:
            if not isinstance(node, ast.ImportFrom) or not node.module:
                continue
            if name in [alias.name for alias in node.names]:
                return (*package, *node.module.split("."))
    return package


@functools.cache
def all_imports() -> dict[Module, set[Module]]:
    """What each module imports from. Reading all modules takes a second."""
    return {module: {*imports(module)} - {()} for module in PATHS if module}


def rooms(size: int = 1) -> dict[Module, set[Module]]:
    """The rooms from which each room imports.

    `size`: how many parts of its name determine the room of a module.
    """
    found: dict[Module, set[Module]] = {}
    for module, others in all_imports().items():
        room = module[:size]
        found.setdefault(room, set()).update({x[:size] for x in others} - {room})
    return found


def floors() -> list[list[str]]:
    """The names of the rooms on each floor, from the lowest floor up."""
    below = rooms()

    @functools.cache
    def floor_of(room: Module) -> int:
        return max((1 + floor_of(other) for other in below[room]), default=0)

    count = 1 + max(map(floor_of, below))
    return [
        sorted(room[0] for room in below if floor_of(room) == i) for i in range(count)
    ]


def table() -> str:
    """The plan, for the page: each room with the first line of its docstring."""
    lines = ["| floor | room | what is in it |", "|--:|:--|:--|"]
    for i, names in enumerate(floors()):
        for name in names:
            path = PATHS[(name,)]
            shown = f"{name}/" if path.name == "__init__.py" else f"{name}.py"
            doc = ast.get_docstring(ast.parse(path.read_text())) or ""
            lines.append(f"| {i} | `{shown}` | {doc.splitlines()[0]} |")
    return "\n".join(lines)


if __name__ == "__main__":
    write_parts(PAGE, {NAME: table()})
