"""Source, laws and parity agree with the rows. (For pages, see `tests/docs`.)"""

import importlib.util
import pathlib
import re

import pytest
from benchmarks.training.problems import problems

import eqopt

from ..laws.registry import concrete_transformations
from . import BY_MODULE, FAMILIES, METHODS, __main__
from .method import Method
from .overview import INDEX


OURS = "eqopt._optimizers."
PLACED = [
    pytest.param(family, module, method, id=method.name)
    for family, modules in BY_MODULE.items()
    for module, methods in modules.items()
    for method in methods
]


def room_of(cls: type) -> str:
    """The family of a class, by where its source is."""
    return cls.__module__.removeprefix(OURS).partition(".")[0]


def test_families_are_the_same_everywhere():
    source = pathlib.Path(eqopt.__file__).parent / "_optimizers"
    tests = pathlib.Path(__file__).parents[1]
    assert {path.parent.name for path in source.glob("*/__init__.py")} == {*FAMILIES}
    tables = re.findall(r"^<!-- end of (\w+) -->$", INDEX.read_text(), re.MULTILINE)
    assert tables == [*FAMILIES]
    rooms = {path.parent.name for path in (tests / "optimizers").glob("*/__init__.py")}
    assert rooms <= {*FAMILIES}


@pytest.mark.parametrize(("family", "module", "method"), PLACED)
def test_it_is_where_its_source_is(family: str, module: str, method: Method):
    assert method.subject.__module__ == f"{OURS}{family}.{module}"
    for row in method.laws:
        is_of_family = room_of(row.subject) == family
        assert is_of_family, f"{row.name} belongs to tests/laws/rows"


def test_every_optimizer_has_a_row():
    """Every building block in an optimizer's file is in the row of an optimizer."""
    classes = {c for c in concrete_transformations() if c.__module__.startswith(OURS)}
    assert classes == set().union(*(method.classes for method in METHODS.values()))


# They use more than gradients, or Optax is wrong.
PARITY_ELSEWHERE = {
    "Hyperball": "tests/optimizers/matrix/test_hyperball.py",
    "LBFGS": "tests/linesearch/test_search_parity.py",
    "Muown": "tests/optimizers/matrix/test_muown.py",
    "Rprop": "tests/interop/test_torch_steps.py",
    "ScheduleFreePlus": "tests/optimizers/schedule_free/test_plus.py",
}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_it_has_laws_and_parity(method: Method):
    assert method.subject in {row.subject for row in method.laws}
    has_parity = method.cases or method.by_hand
    assert has_parity or method.name in PARITY_ELSEWHERE
    assert len(method.rates) in (0, len(problems()))


def test_names_of_cases_are_unique():
    names = [name for method in METHODS.values() for name in method.cases]
    assert len(names) == len({*names})


def test_one_command_writes_all_tables_for_a_new_optimizer(monkeypatch):
    monkeypatch.setattr(__main__, "is_installed", lambda platform: True)
    found = __main__.commands("Lion")
    for module, *_ in found:
        assert importlib.util.find_spec(module) is not None, module
    assert ["benchmarks.training", "--write", "--only", "Lion"] in found
    assert found[-1] == ["docs.examples.draw_paths", "docs/images", "sign"]
    assert {c[1] for c in found if c[0] == "benchmarks.accelerators"} == {"h100", "tpu"}
