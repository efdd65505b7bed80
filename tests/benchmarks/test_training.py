"""What `python -m benchmarks.training` runs, and the table of what it measured."""

import jax
import pytest
from benchmarks.optimizers import OPTIMIZERS
from benchmarks.training.problems import problems
from benchmarks.training.runs import of_arrays

from ..methods import METHODS


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.costly
def test_optimizers_take_lists_of_arrays(name):
    opt = of_arrays(METHODS[name].ours(0.1))
    for problem in problems():
        jax.eval_shape(opt.init, problem.params)
