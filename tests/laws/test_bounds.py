"""Numbers outside the bounds of a field are rejected by name, but traced ones pass."""

import functools
import inspect
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import eqopt
from eqopt._arguments.annotations import rules
from eqopt._types import AtLeast

from ..schedules.conftest import FIRST
from ..test_construction import public_classes
from .registry import REGISTRY


def modules(node):
    """The modules in a tree, and those that a recipe creates."""
    if isinstance(node, eqx.Module):
        yield node
        node = [*vars(node).values(), getattr(node, "chain", None)]
    parts = node.values() if isinstance(node, dict) else node
    if isinstance(node, dict | list | tuple):
        for part in parts:
            yield from modules(part)


PLAN = eqopt.transfer.Plan(1e9, 1e5)


@functools.cache
def examples():
    """The first instance of each class."""
    schedules = [case.ours for case in FIRST.values()]
    trees = [
        eqopt.ScaleByAdam(nesterov=True),  # others have no `momentum_decay`
        *(row() for row in REGISTRY),
        *schedules,
        eqopt.schedules.ReduceOnPlateau(1.0),
        eqopt.transfer.PowerLaw(PLAN, 1e-3),
        eqopt.transfer.Settings(1e-3),
    ]
    return {type(x): x for tree in reversed(trees) for x in modules(tree)}


def bounded(cls):
    found = rules(cls).items()
    return {name: rule for name, rule in found if rule.bounds and rule.is_scalar}


def outside(bounds):
    """Numbers next to the bounds, and NaN."""
    if isinstance(bounds, AtLeast):
        return [bounds.low - 1, bounds.at_most + 1]
    found = [math.nan]
    if bounds.low > -math.inf:
        found.append(bounds.low - (0.5 if bounds.includes_low else 0.0))
    if bounds.high < math.inf:
        found.append(bounds.high + (0.5 if bounds.includes_high else 0.0))
    return found


CLASSES = sorted(filter(bounded, public_classes()), key=str)


@pytest.mark.parametrize("cls", CLASSES)
def test_bounds(cls):
    example = examples().get(cls) or cls()
    names = [*inspect.signature(cls).parameters]

    def create(name, value):
        return cls(**{x: getattr(example, x) for x in names} | {name: value})

    def trace(name, value):
        jax.eval_shape(lambda x: create(name, x) and None, jnp.asarray(value))

    for name, rule in bounded(cls).items():
        for value in outside(rule.bounds):
            with pytest.raises(
                ValueError, match=rf"^{cls.__name__}.*: `{name}` must be"
            ):
                create(name, value)
            if not rule.is_static and abs(value) < 2**31:
                trace(name, value)


def test_values_set_later():
    opt = eqopt.Chain(eqopt.Adam(eqopt.schedules.Linear(1e-3, 0.0, 10)))
    with pytest.raises(
        ValueError, match=r"^Adam: `b1` must be in \[0, 1\), but is 1.5"
    ):
        eqopt.tree.set(opt, b1=1.5)
    with pytest.raises(ValueError, match=r"^Linear: `transition_steps` must be an int"):
        eqopt.tree.set(opt, transition_steps=-1)


def test_signatures_show_no_bounds():
    for cls in CLASSES:
        for parameter in inspect.signature(cls).parameters.values():
            assert "Interval" not in str(parameter) and "AtLeast" not in str(parameter)
