"""Fixtures for the laws."""

import jax
import pytest

from eqopt.testing import _trial
from eqopt.tree._like import is_typed_key

from ..interpreter import interpreted


@pytest.fixture
def uncompiled(monkeypatch):
    """The interpreter runs the programs of trials: compiling takes most of the time."""
    monkeypatch.setattr(_trial, "compiler", interpreted)


@pytest.fixture
def donated_without_compiling(monkeypatch):
    """The same for programs with donated arguments: these are deleted afterwards."""
    monkeypatch.setattr(_trial, "donating", _donating)


def _donating(function):
    run = interpreted(function)

    def call(first, *donated):
        results = run(first, *donated)
        for x in jax.tree.leaves(donated):
            # Keys that do not change are returned, and not copied.
            if isinstance(x, jax.Array) and not is_typed_key(x):
                x.delete()
        return results

    return call
