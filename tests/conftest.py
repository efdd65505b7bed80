"""Fixtures that every test may use."""

import equinox.internal as eqxi
import jax
import pytest


jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def getkey():
    return eqxi.GetKey()
