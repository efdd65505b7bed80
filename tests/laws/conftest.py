"""Fixtures for the laws."""

import pytest

from eqopt.testing import _trial

from ..interpreter import interpreted


@pytest.fixture
def uncompiled(monkeypatch):
    """The interpreter runs the programs of trials: compiling takes most of the time."""
    monkeypatch.setattr(_trial, "compiler", interpreted)
