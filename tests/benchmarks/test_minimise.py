"""The functions are as in the literature, and eqopt minimises them."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.minimise.problems import Problem, problems
from benchmarks.minimise.runs import Run, by_eqopt

from benchmarks import lbfgs

from ..docs.pages import DOCS


pytestmark = pytest.mark.slow


# Square roots of the values at the starting points, as MINPACK's own tests print them.
NORMS_AT_START = {
    "Rosenbrock": 4.9193,
    "Freudenstein-Roth": 20.0125,
    "Jennrich-Sampson": 64.5856,
    "Helical valley": 50,
    "Bard": 6.45614,
    "Meyer": 41153.5,
    "Box": 32.1117,
    "Powell singular": 14.6629,
    "Kowalik-Osborne": 0.0728915,
    "Brown-Dennis": 2815.44,
    "Osborne 1": 0.937564,
    "Watson, n = 6": 5.47723,
    "Watson, n = 9": 5.47723,
    "Brown almost linear, n = 10": 16.5302,
    "Chebyquad, n = 8": 0.196514,
}
BY_TITLE = {problem.title: problem for problem in problems()}
# Within 500 steps, by none of the three.
UNSOLVED = {"Meyer", "Digits, network of 2,410 parameters"}


@pytest.fixture(scope="module", autouse=True)
def precise():
    jax.config.update("jax_enable_x64", True)
    # For the sake of Optax.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield
    jax.config.update("jax_enable_x64", False)


def by_title(problem: Problem) -> str:
    return problem.title


@pytest.mark.parametrize("title", NORMS_AT_START)
def test_value_at_start(title):
    problem = BY_TITLE[title]
    value = jax.jit(problem.fn)(problem.start)
    assert float(value) == pytest.approx(NORMS_AT_START[title] ** 2, rel=1e-4)


def check_minimum(problem: Problem, run: Run) -> None:
    """To the six digits that the literature gives."""
    assert any(
        run.value == pytest.approx(x, rel=5e-6, abs=1e-12) for x in problem.minima
    )


def published() -> tuple[dict[str, tuple[int, int]], set[str]]:
    """Evaluations of eqopt and of Optax by problem, as the page has them.

    And the problems whose evaluations depend on rounding.
    """
    text = (DOCS / "minimising.md").read_text()
    first, second = re.split(r"^\| Problem \|.*$", text, flags=re.MULTILINE)[1:3]
    count = r" \| \*?(\d+)\*? \(\d+\)"
    rows = re.findall(rf"^\| (\w.*?){count}{count}", first, re.MULTILINE)
    medians = re.findall(r"^\| (\w.*?) \|", second, re.MULTILINE)
    return {title: (int(ours), int(theirs)) for title, ours, theirs in rows}, {*medians}


def test_all_problems(precise):
    """All that the page says is solved is, with as many evaluations."""
    page, by_rounding = published()
    assert set(page) == set(BY_TITLE) > by_rounding
    pairs = []
    for title, problem in BY_TITLE.items():
        run = by_eqopt(problem, jnp.float64)
        assert run.is_solved is (title not in UNSOLVED), title
        if problem.minima:
            check_minimum(problem, run)
        if run.is_solved and title not in by_rounding:
            ours, theirs = page[title]
            assert 0.8 * ours - 1 <= run.evaluations <= 1.25 * ours + 1, title
            pairs.append((run.evaluations, theirs))
    ours, theirs = np.sum(pairs, axis=0)
    assert ours <= 1.05 * theirs


def test_temporary_memory():
    """A step takes no more than Optax's."""
    params = [jnp.zeros((100, 1000)) for _ in range(3)]

    def bytes_of(make) -> int:
        method = make(lambda params: sum(jnp.sum(jnp.cosh(x)) for x in params))
        state = jax.eval_shape(method.init, params)
        step = jax.jit(method.step, donate_argnums=(0, 1)).lower(params, state)
        return step.compile().memory_analysis().temp_size_in_bytes

    assert bytes_of(lbfgs.ours) <= bytes_of(lbfgs.optax_s)
