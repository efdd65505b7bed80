"""Settings for all tests, and fixtures that every test may use."""

import atexit
import collections
import contextlib
import gc
import importlib.metadata
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import zlib


# Before JAX starts, when XLA reads its flags. The laws on sharding need several
# devices. The other flags shorten compilation, which takes most of the time: each
# program is compiled as one piece of code, and jaxlib 0.10 uses its older and faster
# code generator. Later releases lack that flag, and XLA does not start with a flag that
# it does not know.
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

# The tests check results, not speed, and compiling takes most of their time. Without
# most optimizations, programs take the same memory. Processes that tests start inherit
# this.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"

# A third of the programs were compiled before, by another worker or before the caches
# were last cleared. Workers inherit this variable from the process that starts them.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="eqopt-programs-")
    atexit.register(
        shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True
    )
# By default, JAX stores only programs that compile for a second, which few of these do.
# Processes that tests start share them, too.
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"


import equinox.internal as eqxi
import jax
import pytest

from eqopt import _jax_internals

from . import eager, random_numbers
from .extras import needs_compared, needs_extras


jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
# No test needs to know which line of Python an operation comes from, and pytest already
# hides the frames of a traceback that do not help.
jax.config.update("jax_include_full_tracebacks_in_locations", False)
jax.config.update("jax_traceback_in_locations_limit", 0)
jax.config.update("jax_traceback_filtering", "off")
gc.disable()  # until all tests are collected, because few objects go before
eager.share()
random_numbers.share()
# If eqopt cannot read the programs of a release of JAX, fail instead of falling back.
_jax_internals.raises = True


_finished = 0

MOST_NEARBY = 500


def pytest_addoption(parser):
    explanation = "of the slow tests, only a tenth, and what is near changed files"
    parser.addoption("--sample", action="store_true", help=explanation)


@pytest.hookimpl(tryfirst=True)  # before the selection by markers
def pytest_collection_modifyitems(config, items):
    """Sorts the tests, marks what is slow, and selects a sample if that is asked for.

    All laws of a row run one after the other, because they share compiled programs.
    Tests that need extra packages are slow tests, for which `.ci/run` has these
    packages. The first case of a costly test and every tenth one after it are quick.
    """
    costly = collections.Counter()
    for item in items:
        name = item.path, item.originalname
        if item.get_closest_marker("costly"):
            if costly[name] % 10:
                item.add_marker("slow")
            costly[name] += 1
        if needs_extras(item):
            item.add_marker("slow")
    if config.getoption("sample"):
        chosen = {*_sample(items)}
        config.hook.pytest_deselected(items=[x for x in items if x not in chosen])
        items[:] = [x for x in items if x in chosen]
    items.sort(key=_row_of)


def _sample(items):
    """A tenth of the slow tests, always the same ones, and some near changed files.

    Also all tests that compare with torch, which only one environment of `.ci/run` has.
    """
    names, nearby = _changed(), []
    for item in items:
        if not item.get_closest_marker("slow"):
            continue
        if needs_compared(item) or _number(item.nodeid) % 10 == 0:
            yield item
        elif names & _words(item):
            nearby.append(item)
    yield from sorted(nearby, key=lambda item: _number(item.nodeid))[:MOST_NEARBY]


def _number(name):
    return zlib.crc32(name.encode())


def _changed():
    """The modules of `src` that differ from the main branch, such as `{"muon"}`."""
    command = ["git", "diff", "--name-only", "--merge-base", "main", "--", "src"]
    done = subprocess.run(command, capture_output=True, text=True)
    return {pathlib.Path(x).stem for x in done.stdout.splitlines()}


def _words(item):
    """Whose test it is: the name of its file, and the classes in its parameters."""
    words = re.findall(r"\w+", f"{item.path.stem} {item.name}")
    snake = [re.sub(r"(?<=[a-z])(?=[A-Z])", "_", word).lower() for word in words]
    return {re.sub("^(test|scale_by)_", "", word) for word in snake}


def _row_of(item):
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    return getattr(parameters.get("row"), "name", "")


def pytest_collection_finish():
    """Excludes all present objects from garbage collection: it took 5 % of the time.

    JAX makes very many small objects and soon frees most of them, so collect less
    often.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
    gc.enable()


def pytest_sessionfinish():
    """At the end, pytest collects garbage five times, which took a second each."""
    gc.collect()
    gc.freeze()


def pytest_runtest_teardown():
    """Clears all compiled programs from time to time.

    Each program takes half a megabyte and some memory mappings. Linux allows a process
    65,530 of these, and ends a process whose compilation needs more. After clearing,
    programs that most tests share are traced again, so this must not happen too often.
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
    """Keys that differ from test to test, and are the same each time a test runs."""
    return eqxi.GetKey(zlib.crc32(request.node.nodeid.encode()) >> 1)


@pytest.fixture
def compiled_outside_jit():
    """JAX compiles each operation outside `jit`, also the small ones."""
    with eager.compiled():
        yield


@pytest.fixture
def compilations():
    """The names of programs that JAX compiles meanwhile."""
    names = []

    def note(event, *_, fun_name="", **__):
        if event == "/jax/core/compile/backend_compile_duration":
            names.append(fun_name)

    jax.monitoring.register_event_duration_secs_listener(note)
    yield names
    jax.monitoring.unregister_event_duration_listener(note)


@pytest.fixture
def standard_promotion():
    """For tests that run other libraries, which may rely on implicit promotion."""
    jax.config.update("jax_numpy_dtype_promotion", "standard")
    jax.config.update("jax_numpy_rank_promotion", "allow")
    yield
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def all_optimizations(compiled_outside_jit):
    """For tests whose result depends on rounding, which optimizations change."""
    jax.clear_caches()  # JAX would reuse programs without regard to the option
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
