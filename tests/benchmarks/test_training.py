"""What `python -m benchmarks.training` runs, and the table of what it measured."""

import math

import jax
import pytest
from benchmarks.optimizers import OPTIMIZERS
from benchmarks.training.problems import problems
from benchmarks.training.report import Result, Run, read, table
from benchmarks.training.runs import of_arrays

from ..methods import METHODS


def test_tables_are_read_again():
    rates = (0.0032, 1.0, 10.0, 0.0001)
    shares = [(1e-7, 0.00012), (0.5, 0.049), (math.nan, 1.57), (0.2, math.nan)]
    results = [Result("SGD", rates, [Run(*pair) for pair in shares])]
    written = table(results)
    assert "| 0 / 0.012 % (0.0032) | 50 % / 4.9 % (1) |" in written
    assert "| NaN / 157 % (10) | 20 % / NaN (0.0001) |" in written
    assert table(read(written)) == written


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.costly
def test_optimizers_take_lists_of_arrays(name):
    opt = of_arrays(METHODS[name].ours(0.1))
    for problem in problems():
        jax.eval_shape(opt.init, problem.params)
