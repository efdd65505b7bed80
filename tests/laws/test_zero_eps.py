"""An epsilon that may be zero: a gradient of zero gives no NaN."""

import dataclasses

import jax

from .registry import REGISTRY, law
from .subjects import all_finite, both, grads_of, params_of


def epsilons(row):
    """The names of its hyperparameters, also without a value in the registry."""
    names = {field.name for field in dataclasses.fields(row.subject)} | {*row.data}
    return [name for name in sorted(names) if name.startswith("eps")]


def without_eps(row):
    """With each of its epsilons at zero that may be, and with all of them.

    The row must pass them on.
    """
    may_be = {}
    for name in epsilons(row):
        try:
            yield row(**{name: 0.0})
        except ValueError as error:
            assert name in str(error)
        except TypeError:
            assert name not in row.data
        else:
            may_be[name] = 0.0
    if len(may_be) > 1:
        yield row(**may_be)


@law(names={row.name for row in REGISTRY if epsilons(row)})
def test_zero_over_zero_is_zero(row):
    """In the first steps, later (RAdam divides from step 6 on), and in some columns."""
    params = params_of()
    zero = jax.tree.map(lambda p: 0 * p, params)
    column = jax.tree.map(lambda p: p.at[..., :1].set(0) if p.ndim else p, params)
    steps = zero, zero, column, zero, grads_of(params, 0), column, zero, column
    for opt in without_eps(row):
        state = opt.init(params)
        for grads in steps:
            (updates, state), _ = both(opt, grads, state, params)
            assert all_finite(updates)
