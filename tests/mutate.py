"""Changes `src` in one place at a time, and runs the tests that are near.

```bash
python -m tests.mutate                      # 60 places: about an hour
python -m tests.mutate --seed 1 --count 10  # other places, and fewer
python -m tests.mutate --only adam/yogi.py  # those in a file, or at one line of it
python -m tests.mutate --list               # the places and the changes, without tests
```

It prints each place with the change, and the test that failed: the change is *caught*. A
change that no test notices *survives*: sharpen a law or an oracle, or add a test. If the
changed code computes the same, add it to `EQUIVALENT`, with the reason.

The changes are made in a copy of `src`, so the checkout stays as it is.
"""

import argparse
import ast
import copy
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import NamedTuple


ROOT = pathlib.Path(__file__).parents[1]
SOURCE, TESTS = ROOT / "src" / "eqopt", ROOT / "tests"

# The tests of all rows of the registry. They come last, because there are very many.
PARITY = ("parity/test_*.py", "parity/departures/test_*.py")
LAWS = ("laws/test_*.py", "docs/test_signatures.py")
OF_ENGINE = (
    *("test_leafwise.py", "test_calls.py", "test_apply.py", "test_extra_arguments.py"),
    *("combinators/test_*.py", "wrappers/test_base.py", "tree/test_*.py"),
    *("test_errors.py", "groups/test_*.py", "parity/test_optax.py"),
)
OF_MATRICES = (
    *("optimizers/matrix/test_*.py", "test_dimension_numbers.py"),
    *("groups/test_*.py", "parity/test_*.py"),
)


class Room(NamedTuple):
    """Sources, how many of 60 places are in them, and the tests that are near.

    - `tests`: test files. With `rows`, only those that mention a public name of the
        changed file, and of parity and the laws, the tests with this name.
    - `laws`: whether the laws come next. Without `rows`, the quick ones of all rows.
    - `slow`: whether slow tests run, too.
    """

    sources: str
    places: int
    tests: tuple[str, ...]
    rows: bool = False
    laws: bool = True
    slow: bool = True


ROOMS = (
    Room("_optimizers/**/*.py", 20, ("optimizers/**/test_*.py",), rows=True),
    Room("schedules/*.py", 4, ("schedules/test_*.py",), laws=False),
    Room("losses/*.py", 4, ("losses/test_*.py",), laws=False),
    Room("_wrappers/**/*.py", 12, ("wrappers/test_*.py",), rows=True),
    Room("storage/*.py", 6, ("storage/test_*.py", "laws/test_stor*.py"), laws=False),
    Room("_core/*.py", 3, OF_ENGINE, slow=False),
    Room("_trees/*.py", 3, OF_ENGINE, slow=False),
    Room("_matrices/*.py", 2, OF_MATRICES, slow=False),
    Room("_combinators/*.py", 2, OF_ENGINE, slow=False),
    Room("microbatching/**/*.py", 3, ("microbatching/test_*.py",), laws=False),
    Room("_transforms/privacy.py", 1, ("transforms/test_*.py",), rows=True),
)

# Files without results to change: they decide where arrays are, and in which order.
ONLY_PLACES = (
    *("_trees/sharding.py", "_matrices/division.py", "storage/_tiles.py"),
    *("_wrappers/offload.py", "microbatching/_convolutions.py"),
)

# Changes after which the same is computed: the file, the old and the new text, and why.
EQUIVALENT: dict[tuple[str, str, str], str] = {}

PAIRS = (
    *((ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.And, ast.Or), (ast.Lt, ast.LtE)),
    *((ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn)),
)
OTHER = {ast.Pow: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv}
OTHER |= {x: y for pair in PAIRS for x, y in (pair, pair[::-1])}
# Arguments that change errors or how a program is compiled, and no results.
NO_RESULTS = {
    *("static", "static_argnums", "static_argnames", "strict", "inline", "unroll"),
    *("maxsize", "hint", "precision", "_stores_in_turn", "_moves_params"),
}


class Change(NamedTuple):
    """A part of a file, as positions in its bytes, and what replaces it."""

    kind: str
    line: int
    start: int
    end: int
    old: str
    new: str

    def apply(self, source: str) -> str:
        data = source.encode()
        return (data[: self.start] + self.new.encode() + data[self.end :]).decode()


class _Finder(ast.NodeVisitor):
    """Collects the changes of a file; not of errors, annotations and documentation."""

    def __init__(self, source: str):
        self.source, self.changes = source, []
        lines = source.encode().splitlines(keepends=True)
        self.starts = [sum(map(len, lines[:i])) for i in range(len(lines))]
        tree = ast.parse(source)
        self.fields = {
            node.name: [x.target.id for x in node.body if isinstance(x, ast.AnnAssign)]
            for node in tree.body
            if isinstance(node, ast.ClassDef)
        }
        self.arguments: set[str] = set()
        self.is_equation = False
        self.visit(tree)

    def add(self, kind, node, new):
        start = self.starts[node.lineno - 1] + node.col_offset
        end = self.starts[node.end_lineno - 1] + node.end_col_offset
        old = " ".join(self.source.encode()[start:end].decode().split())
        self.changes.append(Change(kind, node.lineno, start, end, old, new))

    def ignore(self, node):
        pass

    visit_Raise = visit_Assert = visit_JoinedStr = visit_arg = ignore
    visit_Import = visit_ImportFrom = ignore

    def visit_FunctionDef(self, node):
        if node.name.lstrip("_").startswith("check") or node.name == "__repr__":
            return
        before = self.arguments, self.is_equation
        args = node.args
        self.arguments = {x.arg for x in (*args.args, *args.kwonlyargs)}
        self.is_equation = any(
            "equation" in ast.unparse(x) for x in node.decorator_list
        )
        for default in (*args.defaults, *args.kw_defaults):
            self.number("default", default)
        ends = isinstance(node.body[-1], ast.Raise)
        for statement in node.body:
            # What is assigned before the last line is for its message.
            if not (ends and isinstance(statement, ast.Assign)):
                self.visit(statement)
        self.arguments, self.is_equation = before

    def visit_AnnAssign(self, node):
        if isinstance(node.value, ast.Constant):
            self.number("default", node.value)
        elif isinstance(node.value, ast.Call):  # eqx.field(default=...)
            for keyword in node.value.keywords:
                if keyword.arg == "default":
                    self.number("default", keyword.value)
        elif node.value is not None:
            self.visit(node.value)

    def visit_If(self, node):
        if not isinstance(node.body[-1], ast.Raise):
            return self.generic_visit(node)
        for statement in node.orelse:
            self.visit(statement)

    def visit_keyword(self, node):
        if node.arg not in NO_RESULTS:
            self.visit(node.value)

    def visit_Constant(self, node):
        self.number("constant", node)

    def number(self, kind, node):
        value = node.value if isinstance(node, ast.Constant) else None
        if isinstance(value, bool):
            self.add(kind, node, str(not value))
        elif isinstance(value, int):
            self.add(kind, node, str(value + 1))
        elif isinstance(value, float):
            self.add(kind, node, repr(value / 2 or 0.5))

    def visit_BinOp(self, node):
        parts = ast.List, ast.Tuple, ast.JoinedStr
        is_text = isinstance(getattr(node.left, "value", None), str)
        if not is_text and not isinstance(node.left, parts):
            self.swap_operator(node)
        self.generic_visit(node)

    def visit_BoolOp(self, node):
        self.swap_operator(node)
        self.generic_visit(node)

    def swap_operator(self, node):
        if other := OTHER.get(type(node.op)):
            new = copy.copy(node)
            new.op = other()
            self.add("operator", node, f"({ast.unparse(new)})")

    def visit_Compare(self, node):
        if other := OTHER.get(type(node.ops[0])):
            new = copy.copy(node)
            new.ops = [other(), *node.ops[1:]]
            self.add("comparison", node, f"({ast.unparse(new)})")
        self.generic_visit(node)

    def visit_UnaryOp(self, node):
        if isinstance(node.op, ast.USub | ast.Not):
            self.add("sign", node, f"({ast.unparse(node.operand)})")
        self.generic_visit(node)

    def visit_Assign(self, node):
        name = getattr(node.targets[0], "id", "")
        if name in NO_RESULTS:
            return
        if name in self.arguments:
            self.add("slot", node, "pass")
        self.generic_visit(node)

    def visit_Return(self, node):
        if self.is_equation and isinstance(node.value, ast.Tuple):
            first, *slots = map(ast.unparse, node.value.elts)
            swapped = [first, *slots[::-1]] if len(slots) > 1 else [*slots, first]
            self.add("slot", node, f"return {', '.join(swapped)}")
        self.generic_visit(node)

    def visit_Call(self, node):
        if ast.unparse(node.func) in ("isinstance", "eqx.field", "jax.jit", "TypeVar"):
            return
        fields = self.fields.get(getattr(node.func, "id", ""), [])
        if "state" in self.arguments and fields and node.func.id.endswith("State"):
            named = [*zip(fields, node.args, strict=False)]
            named += [(x.arg, x.value) for x in node.keywords]
            for name, value in named:
                if isinstance(value, ast.Starred):
                    break
                if ast.unparse(value) != f"state.{name}":
                    self.add("slot", value, f"state.{name}")
        self.generic_visit(node)


def changes_of(source: str) -> list[Change]:
    """All changes of a file that the tests may be asked about."""
    return _Finder(source).changes


class Place(NamedTuple):
    room: Room
    path: pathlib.Path
    change: Change

    def __str__(self):
        return f"{self.path.relative_to(SOURCE).as_posix()}:{self.change.line}"

    @property
    def key(self):
        return (str(self).split(":")[0], self.change.old, self.change.new)


def choose(seed: int, count: int) -> Iterator[Place]:
    """The same places for the same seed: first a file, then a kind, then a change."""
    for room in ROOMS:
        rng = random.Random(f"{seed} {room.sources}")
        paths = [x for x in sorted(SOURCE.glob(room.sources)) if _has_results(x)]
        rng.shuffle(paths)
        # One file of each folder, then another one of each.
        folders = [x.parent for x in paths]
        turns = [folders[:i].count(folder) for i, folder in enumerate(folders)]
        paths = [paths[i] for i in sorted(range(len(paths)), key=turns.__getitem__)]
        for i in range(-(-room.places * count // 60)):
            path = paths[i % len(paths)]
            changes = changes_of(path.read_text(encoding="utf-8"))
            kind = rng.choice(sorted({x.kind for x in changes}))
            yield Place(room, path, rng.choice([x for x in changes if x.kind == kind]))


def _has_results(path):
    is_place = path.relative_to(SOURCE).as_posix() in ONLY_PLACES
    return not is_place and bool(changes_of(path.read_text(encoding="utf-8")))


def near(place: Place) -> list[list[str]]:
    """The arguments of pytest that select the tests near a place: in one or two steps."""
    room, path = place.room, place.path
    options = ["-m", f"not accelerators{'' if room.slow else ' and not slow'}"]
    files = _tests(room.tests)
    if room.rows:
        public = _public(path)
        if not public:  # other files of the room use it
            folder = SOURCE / path.relative_to(SOURCE).parts[0]
            others = _mention(sorted(folder.glob("**/*.py")), _names(path))
            public = [name for other in others for name in _public(other)]
        files = _mention(files, public)
        words = [*public, path.stem.strip("_"), *(x.stem for x in files)]
        options += ["-k", " or ".join(dict.fromkeys(words))]
        files += _tests(PARITY)
    steps = [files, _tests(LAWS)] if room.laws else [files]
    return [[*options, *(str(x.relative_to(ROOT)) for x in step)] for step in steps]


def _tests(patterns):
    return [x for pattern in patterns for x in sorted(TESTS.glob(pattern))]


def _names(path):
    """The classes and functions in a file that other files use."""
    nodes = ast.parse(path.read_text(encoding="utf-8")).body
    names = [x.name for x in nodes if isinstance(x, ast.ClassDef | ast.FunctionDef)]
    return [x for x in names if x[0] != "_" and not x.endswith("State")]


def _public(path):
    """Those that are in the stub of the package: transformations and rules."""
    stub = (SOURCE / "__init__.pyi").read_text(encoding="utf-8")
    return [x for x in _names(path) if re.search(rf"\b{x} as {x}\b", stub)]


def _mention(paths, names):
    """Those of the files that contain one of the names."""
    found = re.compile(rf"\b({'|'.join(names)})\b")
    return [x for x in paths if found.search(x.read_text(encoding="utf-8"))]


def run(source: pathlib.Path, arguments: list[str], limit: float | None) -> str:
    """The first test that fails with this copy of `src`; an empty text if none does."""
    options = ["-x", "-q", "-n0", "-pno:cacheprovider", "--tb=no", "-rfE"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(source)},
            capture_output=True,
            text=True,
            timeout=limit,
        )
    except subprocess.TimeoutExpired:
        return ""
    if done.returncode in (0, 5):  # 5: there are no tests
        return ""
    found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    if found:
        return found[1]
    if "while loading conftest" in done.stderr:
        return "tests/conftest.py"
    sys.exit(done.stdout[-2000:] + done.stderr[-2000:])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=60, help="at least")
    parser.add_argument("--only", default="", help="a part of `file:line`")
    parser.add_argument("--skip", type=int, default=0, help="so many places")
    parser.add_argument("--limit", type=float, default=180, help="seconds for a step")
    parser.add_argument(
        "--deselect", action="append", default=[], help="a test that fails anyway"
    )
    parser.add_argument("--list", action="store_true", help="run no tests")
    given = parser.parse_args()
    places = [x for x in choose(given.seed, given.count) if given.only in str(x)]
    places = places[given.skip :]
    deselected = [f"--deselect={x}" for x in given.deselect]
    found, left = {}, []
    print("| place | kind | change | caught by |", flush=True)
    print("| :-- | :-- | :-- | :-- |", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "src"
        shutil.copytree(ROOT / "src", source)
        for place in places:
            copied = source / place.path.relative_to(ROOT / "src")
            before = copied.read_text(encoding="utf-8")
            by = EQUIVALENT.get(place.key, "")
            if not by and not given.list:
                copied.write_text(place.change.apply(before), encoding="utf-8")
                for step in near(place):
                    by = by or run(source, [*step, *deselected], given.limit)
                copied.write_text(before, encoding="utf-8")
                found[place] = by
                left += [] if by else [place]
            change = f"`{place.change.old}` to `{place.change.new}`"
            row = [str(place), place.change.kind, change, by]
            print("|", *[x.replace("|", r"\|") + " |" for x in row], flush=True)
        # A test that fails without a change, too, has caught nothing.
        tests = set(found.values()) - {""}
        while tests and (test := run(source, ["-m", "", *tests], None)) in tests:
            print(f"Without any change, too, this fails: {test}")
            tests.remove(test)
            left += [place for place, by in found.items() if by == test]
    print(f"\n{len(found) - len(left)} of {len(found)} caught.")
    print(*[f"Survived: {place}" for place in left], sep="\n")


if __name__ == "__main__":
    main()
