import jax
import pytest


@pytest.fixture(autouse=True, scope="module")
def quick_compilation():
    """What is computed is asked, not how fast; compiling is most of the cost."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
    jax.clear_caches()  # JAX does not look at the option before it takes a program
