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
import itertools
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

SIGNATURES = "docs/test_signatures.py"  # the defaults are those that are explained
# The tests of all rows of the registry. They come last, because there are very many.
PARITY = ("parity/test_*.py", "parity/departures/test_*.py")
LAWS = ("laws/test_*.py", SIGNATURES)
OF_ENGINE = (
    *("test_leafwise.py", "test_calls.py", "test_apply.py", "test_extra_arguments.py"),
    *("combinators/test_*.py", "wrappers/test_base.py", "tree/test_*.py"),
    *("test_errors.py", "groups/test_*.py", "parity/test_optax.py"),
    "optimizers/polyak/test_polyak.py",  # sums over all leaves
)
OF_MATRICES = (
    *("wrappers/test_distribute_matrices.py", "test_dimension_numbers.py"),
    *("optimizers/matrix/test_*.py", "groups/test_*.py", "parity/test_*.py"),
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
    Room("schedules/*.py", 4, ("schedules/test_*.py", SIGNATURES), laws=False),
    Room("losses/*.py", 4, ("losses/test_*.py", SIGNATURES), laws=False),
    Room("_wrappers/**/*.py", 12, ("wrappers/test_*.py",), rows=True),
    Room("storage/*.py", 6, ("storage/test_*.py", "laws/test_stor*.py"), laws=False),
    Room("_core/*.py", 3, OF_ENGINE, slow=False),
    Room("_trees/*.py", 3, OF_ENGINE, slow=False),
    Room("_matrices/*.py", 2, OF_MATRICES),
    Room("_combinators/*.py", 2, OF_ENGINE, slow=False),
    Room("microbatching/**/*.py", 3, ("microbatching/test_*.py",), laws=False),
    Room("_transforms/privacy.py", 1, ("transforms/test_*.py",), rows=True),
)

# Files without results to change: they decide where arrays are, and in which order.
ONLY_PLACES = (
    *("_trees/sharding.py", "_matrices/division.py", "storage/_tiles.py"),
    *("_wrappers/offload.py",),
)

# Changes after which the same is computed: the file, the old and the new text, and why.
EQUIVALENT = {
    (
        "storage/_random_bits.py",
        "math.prod(shape) < 2**32",
        "(math.prod(shape) <= 2 ** 32)",
    ): "the last of 2**32 elements has the index 2**32 - 1, which also fits in 32 bits",
    (
        "storage/_base.py",
        "False",
        "True",
    ): "the default is for parameters, whose storages do not ask",
    (
        "losses/_embeddings.py",
        "total > 0",
        "(total >= 0)",
    ): "the derivative of equal embeddings stops before it, except that by an `eps` of 0",
    (
        "losses/_distributions.py",
        "jnp.abs(d) < 0.5",
        "(jnp.abs(d) <= 0.5)",
    ): "both formulas are right there",
    (
        "_optimizers/polyak/momo.py",
        "height < rho * state.lb",
        "(height <= rho * state.lb)",
    ): "a bound that is reached exactly",
    (
        "microbatching/_ghost/factors.py",
        "2",
        "3",
    ): "a bound of rounding errors may be larger",
}

PAIRS = (
    *((ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.And, ast.Or), (ast.Lt, ast.LtE)),
    *((ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn)),
)
OTHER = {ast.Pow: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv}
OTHER |= {x: y for pair in PAIRS for x, y in (pair, pair[::-1])}
# Arguments, attributes and calls that change errors or how a program is compiled, and no
# results.
NO_RESULTS = {
    *("static", "static_argnums", "static_argnames", "strict", "inline", "unroll"),
    *("maxsize", "hint", "precision", "_stores_in_turn", "_moves_params"),
}
NO_CALLS = {"isinstance", "eqx.field", "jax.jit", "TypeVar"}


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


def changes_of(source: str) -> list[Change]:
    """All changes of a file that the tests may be asked about."""
    data, tree = source.encode(), ast.parse(source)
    starts = [0, *itertools.accumulate(map(len, data.splitlines(keepends=True)))]
    changes = []
    for kind, node, new in _changes(tree, _Inside(_fields_of_states(tree))):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        old = " ".join(data[start:end].decode().split())
        changes.append(Change(kind, node.lineno, start, end, old, new))
    return changes


def _fields_of_states(tree):
    return {
        node.name: [x.target.id for x in node.body if isinstance(x, ast.AnnAssign)]
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name.endswith("State")
    }


class _Inside(NamedTuple):
    """The states that the file defines, and the function around a node."""

    states: dict[str, list[str]]
    arguments: frozenset[str] = frozenset()
    is_equation: bool = False


def _changes(node, inside):
    """The kind, the node and the new text of each change, in the order of the file."""
    children = ast.iter_child_nodes(node)
    match node:
        case ast.Raise() | ast.Assert() | ast.JoinedStr() | ast.arg():
            return
        case ast.Call() if ast.unparse(node.func) in NO_CALLS:
            return
        case ast.keyword(arg=name) | ast.Assign(targets=[ast.Name(id=name)]) if (
            name in NO_RESULTS
        ):
            return
        case ast.FunctionDef(name=name) if re.match(r"_*(check|repr__)", name):
            return
        case ast.FunctionDef(args=args, body=body):
            for default in (*args.defaults, *args.kw_defaults):
                yield from _number("default", default)
            arguments = frozenset(x.arg for x in (*args.args, *args.kwonlyargs))
            is_equation = any("equation" in ast.unparse(x) for x in node.decorator_list)
            inside = _Inside(inside.states, arguments, is_equation)
            # What is assigned before a last line that raises is for the message.
            ends = isinstance(body[-1], ast.Raise)
            children = [x for x in body if not (ends and isinstance(x, ast.Assign))]
        case ast.If(body=[*_, ast.Raise()]):
            children = node.orelse
        case ast.AnnAssign(value=ast.Call(keywords=keywords)):  # eqx.field(default=...)
            children = []
            for keyword in keywords:
                if keyword.arg == "default":
                    yield from _number("default", keyword.value)
        case ast.AnnAssign(value=value):
            children = [] if isinstance(value, ast.Constant) else filter(None, [value])
            yield from _number("default", value)
        case ast.Constant():
            yield from _number("constant", node)
        case ast.BinOp(
            left=ast.Constant(value=str()) | ast.JoinedStr() | ast.List() | ast.Tuple()
        ):
            pass  # no arithmetic
        case ast.BinOp(op=op) | ast.BoolOp(op=op) if type(op) in OTHER:
            new = _with(node, op=OTHER[type(op)]())
            yield "operator", node, f"({ast.unparse(new)})"
        case ast.Compare(ops=[op, *rest]) if type(op) in OTHER:
            new = _with(node, ops=[OTHER[type(op)](), *rest])
            yield "comparison", node, f"({ast.unparse(new)})"
        case ast.UnaryOp(op=ast.USub() | ast.Not()):
            yield "sign", node, f"({ast.unparse(node.operand)})"
        case ast.Assign(targets=[ast.Name(id=name)]) if name in inside.arguments:
            yield "slot", node, "pass"
        case ast.Return(value=ast.Tuple(elts=parts)) if inside.is_equation:
            first, *slots = map(ast.unparse, parts)
            swapped = [first, *slots[::-1]] if len(slots) > 1 else [*slots, first]
            yield "slot", node, f"return {', '.join(swapped)}"
        case ast.Call(func=ast.Name(id=name)) if "state" in inside.arguments:
            values = itertools.takewhile(_is_one, node.args)
            named = [*zip(inside.states.get(name, ()), values, strict=False)]
            if name in inside.states:
                named += [(x.arg, x.value) for x in node.keywords]
            for field, value in named:
                if ast.unparse(value) != f"state.{field}":
                    yield "slot", value, f"state.{field}"
    for child in children:
        yield from _changes(child, inside)


def _is_one(node):
    return not isinstance(node, ast.Starred)


def _with(node, **fields):
    new = copy.copy(node)
    vars(new).update(fields)
    return new


def _number(kind, node):
    value = node.value if isinstance(node, ast.Constant) else None
    if isinstance(value, bool):
        yield kind, node, str(not value)
    elif isinstance(value, int):
        yield kind, node, str(value + 1)
    elif isinstance(value, float):
        yield kind, node, repr(value / 2 or 0.5)


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
    options = ["-m", "" if room.slow else "not slow"]
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
    """Its names that are in the stub of the package: transformations and rules."""
    stub = (SOURCE / "__init__.pyi").read_text(encoding="utf-8")
    return [x for x in _names(path) if re.search(rf"\b{x} as {x}\b", stub)]


def _mention(paths, names):
    """The files that contain one of the names."""
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
    parser.add_argument("--limit", type=float, default=180, help="seconds for a step")
    parser.add_argument("--list", action="store_true", help="run no tests")
    given = parser.parse_args()
    places = [x for x in choose(given.seed, given.count) if given.only in str(x)]
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
                    by = by or run(source, step, given.limit)
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
