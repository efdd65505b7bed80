"""Settings for all tests, and fixtures that every test may use."""

import atexit
import collections
import contextlib
import gc
import importlib.metadata
import os
import pathlib
import shutil
import tempfile
import zlib


# Before JAX starts: the laws on sharding need several devices. And most of the time goes
# into compiling programs that run for a moment: one piece of code for each program takes
# less time. So does the older of two ways to make it, which jaxlib 0.10 still has. (XLA
# does not start with a flag that it does not know.)
os.environ["XLA_FLAGS"] = " ".join(
    [
        os.environ.get("XLA_FLAGS", ""),
        "--xla_force_host_platform_device_count=8",
        "--xla_cpu_parallel_codegen_split_count=1",
        "--xla_cpu_use_fusion_emitters=false"
        if importlib.metadata.version("jaxlib").startswith("0.10.")
        else "",
    ]
)

# The tests are about what is computed, not how fast: compiling is most of the cost. The
# memory that a program takes is the same. Programs that tests start inherit this.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"

# A third of the programs have been compiled by another worker, or before the last time
# that all were forgotten. Workers have the environment of the process that starts them.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="eqopt-programs-")
    atexit.register(
        shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True
    )


import equinox.internal as eqxi
import jax
import pytest

from eqopt import _jax_internals
from eqopt._cpu import order

from . import contexts
from .extras import needs_extras


jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
# Nobody reads which line of Python a piece of a program comes from. And pytest hides
# what it should of the way to an error.
jax.config.update("jax_include_full_tracebacks_in_locations", False)
jax.config.update("jax_traceback_in_locations_limit", 0)
jax.config.update("jax_traceback_filtering", "off")
contexts.share()
# A CPU computes the laws' small leaves in the order that large ones need.
order.SMALL = 0
# A release of JAX whose programs cannot be read fails, instead of taking other ways.
_jax_internals.raises = True
# Nearly every program takes less than the second that is worth a file by default.
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


_finished = 0


@pytest.hookimpl(tryfirst=True)  # before the selection by markers
def pytest_collection_modifyitems(items):
    """All laws of a row are asked one after the other: they share compiled programs.

    Tests that need extra packages are slow ones: `.ci/run` has these packages only then.
    The first case of a costly test is a quick one, and each fourth after it. The slow
    laws of two rows in three are asked of the older release of JAX, which compiles in a
    quarter of the time; so each law is asked of many rows at both ends.
    """
    seen = collections.Counter()
    for item in items:
        if item.get_closest_marker("costly"):
            if seen[item.originalname, item.path] % 4:
                item.add_marker("slow")
            seen[item.originalname, item.path] += 1
        if needs_extras(item):
            item.add_marker("slow")
            item.add_marker("extras")
        elif item.get_closest_marker("slow") and zlib.crc32(_row_of(item).encode()) % 3:
            item.add_marker("older")

    items.sort(key=_row_of)


def _row_of(item):
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    return getattr(parameters.get("row"), "name", "")


def pytest_collection_finish():
    """What there is by now stays: looking for garbage in it took a twentieth of the time.

    And JAX makes a great many small things, most of which are gone soon.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


def pytest_sessionfinish():
    """What is in use is not garbage: pytest looks for that five times, a second each."""
    gc.collect()
    gc.freeze()


def pytest_runtest_teardown():
    """Every now and then, forgets all compiled programs.

    Each of them takes half a megabyte, and maps some memory, of which a process on Linux
    may have 65,530 pieces: a compilation that needs more is the end of the process. To
    forget more often than needed is to trace again what most tests share.
    """
    global _finished
    _finished += 1
    if _finished % 50 == 0 and _is_time_to_forget():
        jax.clear_caches()


def _is_time_to_forget() -> bool:
    maps = pathlib.Path("/proc/self/maps")
    if maps.exists():
        return len(maps.read_bytes().splitlines()) > 20_000
    return _finished % 1000 == 0


@pytest.fixture
def getkey(request):
    """Other numbers for each test, and the same ones each time that it runs."""
    return eqxi.GetKey(zlib.crc32(request.node.nodeid.encode()) >> 1)


@pytest.fixture
def standard_promotion():
    """For tests that run code of others, which may rely on implicit promotion."""
    jax.config.update("jax_numpy_dtype_promotion", "standard")
    jax.config.update("jax_numpy_rank_promotion", "allow")
    yield
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def all_optimizations():
    """For tests of what rounding decides, which is another one if XLA takes its time."""
    jax.clear_caches()  # JAX does not look at the option before it takes a program
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)
    jax.clear_caches()


@pytest.fixture
def x64():
    """Turns on 64 bits for a `with` block."""

    @contextlib.contextmanager
    def turned_on():
        jax.config.update("jax_enable_x64", True)
        try:
            yield
        finally:
            jax.config.update("jax_enable_x64", False)

    return turned_on
