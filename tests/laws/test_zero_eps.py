"""An epsilon that may be zero: a gradient of zero gives no NaN."""

import dataclasses

import jax
import pytest

from .registry import REGISTRY, TELLING
from .subjects import all_finite, both, grads_of, params_of


def epsilons(row):
    """The names of its hyperparameters, also without a value in the registry."""
    names = {field.name for field in dataclasses.fields(row.subject)} | {*row.data}
    return [name for name in sorted(names) if name.startswith("eps")]


def without_eps(row):
    """With its epsilons at zero that may be, and that the row passes on."""
    may_be = {}
    for name in epsilons(row):
        try:
            row(**{name: 0.0})
        except ValueError as error:
            assert name in str(error)
        except TypeError:
            assert name not in row.data
        else:
            may_be[name] = 0.0
    return row(**may_be)


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(
            row, id=row.name, marks=[] if row.name in TELLING else [pytest.mark.slow]
        )
        for row in REGISTRY
        if epsilons(row)
    ],
)
def test_zero_over_zero_is_zero(row):
    """In the first steps, later (RAdam divides from step 6 on), and in some columns."""
    opt, params = without_eps(row), params_of()
    state = opt.init(params)
    zero = jax.tree.map(lambda p: 0 * p, params)
    column = jax.tree.map(lambda p: p.at[..., :1].set(0) if p.ndim else p, params)
    for grads in (zero, zero, column, zero, grads_of(params, 0), column, zero, column):
        (updates, state), _ = both(opt, grads, state, params)
        assert all_finite(updates)
