"""Steps cost what `figures.json` says, compiled for an H100 and for a TPU.

These tests need the plugins that compile for accelerators. Without them, the tests fail
if only this folder is selected, as `.ci/run` does, and otherwise they are skipped.
"""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest
from benchmarks.accelerators import devices

from .figures import Figures, above_the_limit, differences, minor, read, versions
from .rows import LEAFWISE, MORE_MOVED, PLATFORMS, more_moved, rows_of


ROOT = pathlib.Path(__file__).parents[2]

# Variables that other tests set, and that a step on a device would not have. The cache
# may hold programs that were compiled with the first two.
OF_OTHER_TESTS = {
    *("XLA_FLAGS", "JAX_DISABLE_MOST_OPTIMIZATIONS", "JAX_COMPILATION_CACHE_DIR"),
}


def compile_for(platform: str, config: pytest.Config) -> dict[str, Figures]:
    """Compiles all rows in one process: a plugin must start with JAX."""
    try:
        devices.check_installed(platform)
    except ModuleNotFoundError as error:
        is_selected = "tests/compiled" in config.args
        (pytest.fail if is_selected else pytest.skip)(str(error))
    command = [sys.executable, "-m", "tests.compiled", platform]
    command += ["--leafwise"] + ["--devices"] * (platform == "h100")
    env = {key: x for key, x in os.environ.items() if key not in OF_OTHER_TESTS}
    ran = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    found = [json.loads(row) for row in ran.stdout.splitlines() if row[:1] == "{"]
    if not found:
        pytest.fail(f"`{' '.join(command)}` failed:\n{ran.stderr[-3000:]}")
    return {row.pop("row"): row for row in found}


@pytest.fixture(scope="session")
def h100(request):
    return compile_for("h100", request.config)


@pytest.fixture(scope="session")
def tpu(request):
    return compile_for("tpu", request.config)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("platform", "name"),
    [(platform, name) for platform in PLATFORMS for name in rows_of(platform)],
)
def test_steps_cost_what_they_did(platform, name, request):
    found, expected = request.getfixturevalue(platform), read()[platform]
    now, then = versions(platform), expected["versions"]
    is_same = minor(now["jax"]) == minor(then["jax"])
    differ = differences(name, platform, found[name], expected["rows"][name], is_same)
    assert not differ, "\n".join(
        [
            *differ,
            f"The figures are those of {then}; these are {now}. To see them again, run "
            f'`python -m tests.compiled {platform} "{name}"`. If they should be so, run '
            f"`python -m tests.compiled {platform} --write`.",
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize("platform", PLATFORMS)
def test_figures_are_of_this_release(platform, request):
    """Skips with a message if they are from another minor release of JAX."""
    request.getfixturevalue(platform)
    now, then = versions(platform)["jax"], read()[platform]["versions"]["jax"]
    if minor(now) != minor(then):
        pytest.skip(
            f"the figures for {platform} are those of JAX {then}, and this is JAX {now}: "
            "compared with 10 % of slack. Write new ones: "
            f"`python -m tests.compiled {platform} --write`"
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", LEAFWISE)
@pytest.mark.parametrize("platform", PLATFORMS)
def test_leafwise_rows_move_each_array_once(platform, name, request):
    """What a `jax.tree.map` of the equations would move, and what the row states."""
    found = request.getfixturevalue(platform)[f"leafwise, {name}"]
    text = above_the_limit(name, platform, found, more_moved(name, platform))
    assert not text, text


@pytest.mark.slow
def test_gradients_are_scattered(h100):
    """What `docs/scaling_out.md` says: no device gets sums of which it needs a part."""
    assert h100["gradients, ZeRO-1"]["sent"] == {"reduce-scatter": 1, "all-gather": 1}
    for name in ("fully sharded", "fully sharded, scattered explicitly"):
        assert "all-reduce" not in h100[f"gradients, {name}"]["sent"]


@pytest.mark.slow
def test_matrices_are_exchanged_once(h100):
    """Each device sends its shards, and gets them back. Experts stay where they are."""
    for method in ("Muon", "SOAP"):
        assert h100[f"fully sharded: {method}"]["sent"] == {"all-to-all": 0.25}
        assert h100[f"experts: {method}"]["sent"] == {}


@pytest.mark.slow
def test_matrices_are_exchanged_while_others_are_computed(h100):
    """Two of the exchanges of two parts take place during an iteration."""
    row = h100["fully sharded: Muon"]
    assert (row["exchanges"], row["hidden"]) == (4, 2)
    assert row["shards"] < 4


@pytest.mark.slow
def test_shares_are_computed_in_place(h100):
    """Of 8 matrices, one after the other: a shard, and what one matrix takes."""
    assert h100["fully sharded: SOAP"]["shards"] < 3


# Each array is moved once. For the norm of all gradients, gradients are read twice.
# Of what a mask excludes, only the gradient is read, for the norm.
BY_HAND = {
    "SGD": 3,
    "momentum": 5,
    "Lion": 5,
    "Adam": 7,
    "AdamW": 7,
    "clip + AdamW": 8,
    "AdamW x all x bfloat16": 5,
    "ParamEMA x all x bfloat16": 6,
    "AdamW x half x float32": 3.5,
    "AdamW x half x bfloat16": 2.5,
    "clip x half x float32": 4.5,
    "clip x half x bfloat16": 3.5,
}


@pytest.mark.parametrize(("name", "moved"), BY_HAND.items())
def test_figures_agree_with_a_count_by_hand(name, moved):
    figures = read()["h100"]["rows"][name]
    assert figures["least"] == figures["most"] == pytest.approx(moved, abs=0.005)
    assert figures["temporary"] < 0.001


def test_all_rows_have_figures():
    figures = read()
    assert list(figures) == [*PLATFORMS]
    for platform in PLATFORMS:
        assert list(figures[platform]["rows"]) == rows_of(platform)
    names = {*LEAFWISE, *(name.partition("(")[0] for name in LEAFWISE)}
    assert all(names >= {*rows} for rows in MORE_MOVED.values())


EXPECTED = {"least": 3.0, "most": 7.0, "temporary": 0.0, "kernels": 8}


@pytest.mark.parametrize(
    ("change", "same", "other"),
    [
        ({"most": 7.1, "temporary": 0.004, "kernels": 9}, "", ""),
        ({"most": 7.5}, "moved 7.5 sizes of the parameters, expected 7 with 2%", ""),
        ({"most": 9.0}, "moved 9 sizes of the parameters", "expected 7 with 10%"),
        ({"kernels": 11}, "kernels 11, expected 8 with 2%", "expected 8 with 10%"),
        ({"most": 6.0}, r"expected 7 with 2% of slack \(less is better", ""),
        ({"failure": "Error: no"}, "does not compile for an H100", "Error: no"),
    ],
)
def test_differences(change, same, other):
    for is_same, match in ((True, same), (False, other)):
        found = differences("AdamW", "h100", EXPECTED | change, EXPECTED, is_same)
        assert len(found) == bool(match)
        for text in found:
            assert text.startswith("AdamW ") and " an H100: " in text
            assert re.search(match, text)


def test_above_the_limit():
    assert not above_the_limit("LAMB", "tpu", {"limit": 7.0, "most": 10.05}, 3)
    text = above_the_limit("Adam", "h100", {"limit": 7.0, "most": 8.0}, 0)
    assert "Adam on an H100: moved 8 sizes" in text and "at most 7:" in text
    text = above_the_limit("Adam", "h100", {"failure": "Error: no"}, 0)
    assert "Adam does not compile" in text
