"""Fixtures for tests that compare with torch."""

import pytest


@pytest.fixture
def float64(x64):
    """With float64, torch and eqopt agree in all but the last digits."""
    torch = pytest.importorskip("torch")
    torch.set_default_dtype(torch.float64)  # also of steps and products in its states
    with x64():
        yield
    torch.set_default_dtype(torch.float32)
