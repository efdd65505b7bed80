"""Slow links: the page says what the results say, and the formulas what was counted."""

import pytest
from benchmarks.links import results
from benchmarks.links.__main__ import PAGE
from benchmarks.links.link import Link
from benchmarks.links.methods import NAMES, ZERO1
from benchmarks.links.report import parts
from benchmarks.links.sent import messages, shapes_of
from benchmarks.links.training import RANK
from benchmarks.workloads.language import SHAPE


@pytest.fixture(scope="module")
def found():
    return results.read()


def test_the_page_is_what_the_results_say(found):
    page = PAGE.read_text()
    for name, part in parts(found).items():
        assert f"<!-- {name} -->\n\n{part}\n\n<!-- end of {name} -->" in page, name


@pytest.mark.parametrize("name", NAMES)
def test_the_formula_is_what_was_counted(found, name):
    by_formula = messages(name, shapes_of(SHAPE), RANK)
    # ZeRO-1 was counted in a whole training step, which also sums the loss.
    most = 4 * 2 if name == ZERO1 else 0
    assert 0 <= found.counted[name].per_step - by_formula.per_step <= most
    assert found.counted[name].steps == by_formula.steps


def test_a_link():
    """Four replicas and 1000 numbers, by hand: 6 rounds of a quarter, then 3."""
    both = messages(ZERO1, [(10, 100)], rank=1, replicas=4)
    assert both.per_step == 9 * 1000
    assert Link(0.5, 8e-6).seconds(both) == pytest.approx(9 * (0.5 + 1000 / 1000))
