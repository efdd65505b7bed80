"""What the documentation must say about each optimizer, and about extra arguments."""

import inspect
import re

import pytest
from benchmarks.optimizers import OPTIMIZERS

import eqopt

from ..methods import METHODS
from ..methods.method import Method
from ..methods.overview import rate, written
from .pages import DOCS, OF_OPTIMIZERS, prose


def test_the_overview_is_that_of_the_rows():
    for page, text in written().items():
        assert page.read_text() == text, "run `python -m tests.methods`"


def test_every_optimizer_has_a_page_with_what_was_measured():
    for name, method in METHODS.items():
        text = OF_OPTIMIZERS[f"api/optimizers/{name}.md"]
        assert f"start with {rate(method)}; the best on the workloads below: " in text
        assert re.search(rf"^\| {name} \| .*\d", text, re.MULTILINE), name
        assert not method.rates or "**Time of an update:** " in text, name


def test_parts_are_on_the_page_of_the_optimizer_that_uses_them():
    parts = {
        page.removeprefix("api/optimizers/").removesuffix(".md"): entries[1:]
        for page, text in OF_OPTIMIZERS.items()
        if (entries := re.findall(r"^::: eqopt\.(\w+)$", text, re.MULTILINE))
    }
    assert parts["Adam"] == ["ScaleByAdam", "ScaleByAdamState"] and not parts["NAdam"]
    assert parts["MoMoAdam"] == ["MoMoAdamState"]
    assert parts["SCALE"] == ["ScaleByRowNorm"]


def test_where_to_start():
    """The rates in the first table of "Which optimizer?" are the usual ones."""
    page, _, _ = (DOCS / "which_optimizer.md").read_text().partition("## All of them")
    found = dict(re.findall(r"\[`(\w+)\(([\d.]+)\)`\]", page))
    assert len(found) == 11
    assert found == {name: rate(METHODS[name]) for name in found}


def test_every_average_is_in_the_table_of_averages():
    section = (
        prose(DOCS / "evaluating.md").split("## Which average")[1].split("\n## ")[0]
    )
    averages = {
        name
        for name, value in ((name, getattr(eqopt, name)) for name in eqopt.__all__)
        if isinstance(value, type)
        and issubclass(value, eqopt.AbstractTransformation)
        and value.__module__.startswith("eqopt._wrappers.averages.")
    }
    assert len(averages) == 8
    assert averages <= {*re.findall(r"\[`eqopt\.(\w+)`\]\[\]", section)}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_coming_from_optax_has_it(method: Method):
    page = (DOCS / "coming_from_optax.md").read_text()
    names = re.findall(rf"^\| (.*?) \| \[`eqopt\.{method.name}`\]", page, re.M)
    translated = re.findall(r"`optax\.(\S+?)`", " ".join(names))
    expected = {method.in_optax} if method.in_optax else set()
    assert expected <= {*translated} and bool(expected) == bool(translated)


@pytest.mark.parametrize(
    ("page", "part", "pattern"),
    [
        ("training.md", "table", r"^\| \[`(\w+)`\]"),
        ("benchmarks.md", "optimizers", r"^\| (\w+) \| [\d.]+ ms"),
    ],
)
def test_tables_of_what_was_measured(page: str, part: str, pattern: str):
    """They have all optimizers, in the order of the rows."""
    _, _, text = (DOCS / page).read_text().partition(f"<!-- {part} -->")
    text = text.partition(f"<!-- end of {part} -->")[0]
    assert re.findall(pattern, text, re.MULTILINE) == [*OPTIMIZERS]


def test_the_page_on_training_has_all_that_deviate():
    text, _, _ = (DOCS / "training.md").read_text().partition("<!-- table -->")
    for name, method in OPTIMIZERS.items():
        assert not method.deviates or re.search(rf"\b{name}\b", text), name


def test_the_list_of_extra_arguments():
    page = (DOCS / "api" / "base.md").read_text()
    listed = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    read = set()
    for name in dir(eqopt):
        for method in ("update", "leafwise", "matrixwise"):
            if fn := getattr(getattr(eqopt, name), method, None):
                parameters = inspect.signature(fn).parameters.values()
                read |= {x.name for x in parameters if x.kind is x.KEYWORD_ONLY}
    assert read
    assert read <= listed
