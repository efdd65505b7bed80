import jax
import pytest


@pytest.fixture(autouse=True, scope="package")
def quick_compilation():
    """The tests are of what is computed, not how fast; compiling is all of the cost."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
    jax.clear_caches()  # JAX does not look at the option before it takes a program
