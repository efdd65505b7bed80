"""Every public name is documented once, and what the pages refer to exists."""

import ast
import importlib
import inspect
import pathlib
import re
from typing import Any

import pytest

from ..methods import METHODS
from .pages import DOCS, OF_OPTIMIZERS, PAGES, RENAMED, ROOT, name, prose, same_names


SOURCES = ROOT / "src" / "eqopt"
CONFIG = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


def names_in_stub(stub: pathlib.Path) -> set[str]:
    """The public names in a stub, and in the packages that it names."""
    package = ".".join(stub.parent.relative_to(SOURCES.parent).parts)
    found = set()
    for node in ast.parse(stub.read_text(encoding="utf-8")).body:
        assert isinstance(node, ast.ImportFrom), f"{stub} has more than imports"
        for alias in node.names:
            found.add(f"{package}.{alias.name}")
            if node.module is None:
                nested = stub.parent / alias.name / "__init__.pyi"
                module = stub.parent / f"{alias.name}.py"
                found |= names_in_stub(nested) if nested.exists() else functions(module)
    return found


def functions(module: pathlib.Path) -> set[str]:
    """The public functions of a public module that has no stub."""
    prefix = ".".join(module.relative_to(SOURCES.parent).with_suffix("").parts)
    return {
        f"{prefix}.{node.name}"
        for node in ast.parse(module.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name[0] != "_"
    }


PUBLIC = names_in_stub(SOURCES / "__init__.pyi")
NAMESPACES = {n for n in PUBLIC if any(m.startswith(f"{n}.") for m in PUBLIC)}


def test_every_public_name_has_one_directive():
    where = {public: [] for public in PUBLIC}
    for page, text in [*((name(x), prose(x)) for x in PAGES), *OF_OPTIMIZERS.items()]:
        for directive in re.findall(r"^::: +(\S+)", text, re.MULTILINE):
            where.setdefault(directive, []).append(page)
    no_such_name = set(where) - PUBLIC
    assert not no_such_name
    nowhere = {n for n, pages in where.items() if not pages} - NAMESPACES
    assert not nowhere
    repeated = {n: pages for n, pages in where.items() if len(pages) > 1}
    assert not repeated


def test_every_page_is_in_the_navigation():
    nav = re.search(r"^nav:\n(.*?)^\S", CONFIG, re.DOTALL | re.MULTILINE)
    assert nav is not None
    listed = re.findall(r": +(\S+\.md)$", nav[1], re.MULTILINE)
    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in PAGES)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_resolve(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.is_file(), target
        if anchor:
            assert anchor in anchors(linked), target
    explicit = re.findall(r"\]\[([^\]]+)\]", prose(page))
    for target in explicit + re.findall(r"\[`([^`]+)`\]\[\]", prose(page)):
        assert known(target), target


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_links_resolve_on_github(page):
    """Which does not know `{ #anchor }`."""
    for target in re.findall(r"\]\(([^)\s]+)\)", (ROOT / page).read_text()):
        path, _, anchor = target.partition("#")
        if not re.match(r"[a-z]+:", target):
            assert (ROOT / path).exists(), target
            assert not anchor or anchor in anchors(ROOT / path, explicit=None), target


def anchors(page: pathlib.Path, explicit: str | None = r"\{ *#(\S+)") -> set[str]:
    """The anchors of the headings of a page, as Python-Markdown makes them."""
    found = set()
    for heading in re.findall(r"^#+ +(.*)$", prose(page), re.MULTILINE):
        chosen = explicit and re.search(explicit, heading)
        slug = re.sub(r"[^\w\s-]", "", heading).strip().lower()
        found.add(chosen[1] if chosen else re.sub(r"[-\s]+", "-", slug))
    return found


def known(reference: str) -> bool:
    """Whether a cross-reference is a public name, or a method of one."""
    owner = reference.rpartition(".")[0]
    return reference in PUBLIC or (owner in PUBLIC and resolve(reference) is not None)


def resolve(dotted: str) -> Any:
    """The object of that name, or `None`."""
    package, *rest = dotted.split(".")
    found = importlib.import_module(package)
    for part in rest:
        found = getattr(found, part, None)
    return found


ROOMS = [
    "optax",
    *(
        f"optax.{room}"
        for room in (
            *("assignment", "contrib", "losses", "perturbations", "projections"),
            *("schedules", "second_order", "tree"),
        )
    ),
]
# What has the name of something else in Optax, or is no transformation there.
OTHER_THINGS = {
    "eqopt.LookaheadParams",
    "eqopt.Params",
    "eqopt.SCALE",
    "eqopt.ScalarOrSchedule",
    "eqopt.Updates",
    "eqopt.ZoomLinesearchInfo",
    "eqopt.groups.where",
    "eqopt.numerics.bias_correction",
    "eqopt.plot.schedule",
    "eqopt.schedules.ReduceOnPlateau",
    "eqopt.schedules.Sum",
    "eqopt.storage.Cast",
}


def public(room: str) -> list[str]:
    return [name for name in dir(resolve(room)) if not name.startswith("_")]


def spelled(name: str) -> str:
    """The last part of a name, in the same spelling for classes and functions."""
    return name.rpartition(".")[2].replace("_", "").lower()


def test_the_readme_and_the_landing_page_count_the_optimizers():
    all_of_them = len(METHODS)
    new = sum(not method.in_optax for method in METHODS.values())
    first = (ROOT / "README.md").read_text()
    assert f"all {all_of_them - new} of Optax and {new} newer ones" in first
    for text in (first, (DOCS / "index.md").read_text()):
        assert f"{all_of_them} of them, tuned on seven workloads" in text


def test_table_of_names_is_true():
    """Both sides exist; arguments are the same where the table shows no difference."""
    text = (DOCS / "coming_from_optax.md").read_text(encoding="utf-8")
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| `")]
    same = same_names(DOCS / "coming_from_optax.md")
    rows += [["", f"`optax.{name}`", f"`eqopt.{name}`", ""] for name in same]
    assert len(same) > 60
    translated = set()
    for _, theirs, ours, *difference, _ in rows:
        [here] = re.findall(r"`(eqopt[^`]*)`", ours)
        translated.add(here)
        for there in re.findall(r"`(optax[^`]*)`", theirs):
            if there.startswith("optax.monte_carlo."):
                assert resolve(there) is None, there  # the page says that it is gone
                continue
            assert resolve(there) is not None, there
            if not "".join(difference).strip():
                assert_same_arguments(there, here)
            for renamed in re.findall(RENAMED, "".join(difference)):
                names = re.findall(r"\w+(?=`)", renamed)
                names = names[::-1] if " is " in renamed else names
                assert names[0] in arguments(here) and names[1] in arguments(there)
    assert translated <= PUBLIC
    in_optax = {spelled(name) for room in ROOMS for name in public(room)}
    missing = {
        here
        for here in PUBLIC - translated - NAMESPACES - OTHER_THINGS
        if spelled(here) in in_optax and not here.endswith("State")
    }
    assert not missing


# Arguments that most optimizers have here, as the page says once for all of them.
DTYPES = {"mu_dtype", "nu_dtype", "accumulator_dtype"}


def assert_same_arguments(there: str, here: str) -> None:
    """Compares names, and defaults if both of them are numbers."""
    theirs, ours = arguments(there), arguments(here)
    assert theirs.keys() - DTYPES == ours.keys() - DTYPES, (there, here)
    assert theirs.keys() <= ours.keys(), (there, here)
    for key, default in theirs.items():
        if isinstance(default, int | float) and isinstance(ours[key], int | float):
            assert default == ours[key], (there, here, key)


def arguments(dotted: str) -> dict[str, Any]:
    parameters = inspect.signature(resolve(dotted)).parameters.values()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {p.name: p.default for p in parameters if p.kind not in variadic}


def test_the_readme_and_the_benchmarks_have_the_same_numbers():
    """All rows of the first table of the README, which is about a GPU."""
    table = re.search(r"(?:^\|.*\n)+", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert table is not None and "AdamW" in table[0]
    assert table[0] in (DOCS / "benchmarks.md").read_text()
