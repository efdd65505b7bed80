"""Whether `python -m benchmarks` runs, and what it claims as far as it is free of noise.

No test here looks at a clock: times are for `python -m benchmarks` on a quiet machine.
"""

import json
import pathlib
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from benchmarks.__main__ import main
from benchmarks.cases import README
from benchmarks.contestants import Optimizer, Pair
from benchmarks.measures import Settings, stepping
from benchmarks.report import compact

import eqopt


ROOT = pathlib.Path(__file__).parents[2]

# One of each kind of work, except for the one on square matrices, which takes long.
CHOSEN = ["trace-step", "clip-adamw", "conditionally-transform", "lbfgs-digits"]


def test_rows_of_the_readme():
    """`--readme` measures what the table shows."""
    text = (ROOT / "README.md").read_text()
    shown = re.findall(
        r"^\| ([^|]*(?:50M|256|1000|import)[^|]*) \|", text, re.MULTILINE
    )
    settings = {"size": "50M", "leaves": 1000, "few": 100}
    measured = [case.what.format(**settings) for case in README]
    assert [row for row in shown if "memory" not in row] == measured


@pytest.mark.slow
def test_a_small_run_of_everything(tmp_path):
    output = tmp_path / "benchmarks.json"
    small = ["--size=20000", "--leaves=4", "--rounds=1", f"--output={output}"]
    small += [f"--only={name}" for name in CHOSEN]
    command = [sys.executable, "-m", "benchmarks", *small]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    rows = {row["name"]: row for row in json.loads(output.read_text())["rows"]}
    assert {name.removesuffix("/memory") for name in rows} == {*CHOSEN}
    for row in rows.values():
        if row["unit"] == "ms":
            assert row["ratio"] == pytest.approx(row["eqopt"] / row["other"])
        if row["target"]:
            _, limit, *percent = row["target"].split()
            found = 100 * row["eqopt_fraction"] if percent else row["ratio"]
            is_below = found < float(limit) if percent else found <= float(limit)
            assert row["met"] is is_below


def test_the_page_has_the_columns_that_are_written():
    header = compact([]).splitlines()[0]
    assert f"\n{header}\n" in (ROOT / "docs/benchmarks.md").read_text()


@pytest.mark.slow
def test_table_of_gradients(tmp_path):
    output = tmp_path / "benchmarks.json"
    some = {"clipped-grad-mlp", "micro-grad", "ctc"}
    small = ["--size=20000", "--rounds=1", f"--output={output}"]
    with jax.numpy_dtype_promotion("standard"):
        main([*small, *(f"--only={name}" for name in sorted(some))])
    rows = json.loads(output.read_text())["rows"]
    assert some <= {row["name"] for row in rows}
    assert all(row["eqopt"] > 0 and row["other"] > 0 for row in rows)


@pytest.mark.slow
def test_different_work_is_refused():
    measure = stepping(Pair[Optimizer](eqopt.Adam(1e-3), eqopt.Adam(2e-3)))
    with pytest.raises(RuntimeError, match="not the same work"):
        measure(Settings(size=10_000, leaves=1, rounds=1))


@pytest.mark.parametrize(
    ("opt", "limit"),
    [
        (eqopt.Chain(eqopt.ClipByGlobalNorm(1.0), eqopt.AdamW(1e-3)), 0.01),
        (eqopt.MultiSteps(eqopt.AdamW(1e-3), 8), 0.01),
        (eqopt.ApplyIfFinite(eqopt.AdamW(1e-3), 5), 0.05),
        (eqopt.Adam(1e-3), 0.01),
        (eqopt.Lion(1e-3), 1.01),  # on a CPU, a copy of the parameters, as in Optax
        (eqopt.SGD(1e-3, momentum=0.9), 0.01),
    ],
    ids=lambda x: (
        type(x).__name__ if isinstance(x, eqopt.AbstractTransformation) else ""
    ),
)
@pytest.mark.costly
def test_temporary_memory(opt, limit):
    params = [jnp.zeros((250, 1000)) for _ in range(4)]
    state = jax.eval_shape(opt.init, params)
    step = jax.jit(lambda p, s, g: opt.step(g, s, p), donate_argnums=(0, 1))
    memory = step.lower(params, state, params).compile().memory_analysis()
    assert memory is not None
    total = sum(x.nbytes for x in params)
    assert memory.temp_size_in_bytes < limit * total
    # In place: each result reuses the buffer of an argument.
    assert memory.output_size_in_bytes - memory.alias_size_in_bytes < 0.01 * total
