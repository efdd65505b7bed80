"""Settings for the tests of losses."""

import jax
import pytest


@pytest.fixture(scope="module", autouse=True)
def quick_compilation():
    """What runs for a moment need not be fast."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
    jax.clear_caches()  # no other test is to meet what was compiled like this
