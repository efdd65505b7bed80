"""That `python -m benchmarks` runs, and what it claims as far as it is free of noise.

No test here looks at a clock: times are for `python -m benchmarks` on a quiet machine.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from benchmarks.__main__ import main
from benchmarks.cases import README, TABLE
from benchmarks.contestants import Optimizer, Pair
from benchmarks.measures import Settings, square_leaves, stepping
from benchmarks.report import Row, compact, with_memory, written

import eqopt
from benchmarks import __main__ as command, gradients, processes


ROOT = pathlib.Path(__file__).parents[2]

COLUMNS = ["name", "work", "eqopt", "Optax", "ratio", "target", "met"]
TARGETS = {
    "cautious": "<= 1.5",
    "cautious-decay": "<= 1.05",
    "ema-nesterov": "<= 1.35",
    "gpa": "<= 1.35",
    "grokfast": "<= 1.35",
    "hyperball": "<= 1.8",
    "outer-nesterov": "<= 1.11",
    "trace-step": "<= 0.45",
    "trace-update": "<= 0.45",
    "trace-small-adam": "<= 1.5",
    "trace-small-adamw": "<= 1.5",
    "trace-small-clip-adamw": "<= 1.5",
    "trace-small-lion": "<= 1.5",
    "trace-small-momentum": "<= 1.5",
    "eager": "<= 0.6",
    "clip-adamw": "<= 0.7",
    "clip-adamw/memory": "< 1 %",
    "multi-steps": "<= 0.2",
    "multi-steps/memory": "< 1 %",
    "multi-steps-update": "<= 0.5",
    "multi-steps-muon": "<= 0.2",
    "apply-if-finite": "<= 0.6",
    "apply-if-finite/memory": "< 5 %",
    "lookahead": "<= 0.6",
    "lookahead/memory": "< 5 %",
    "conditionally-transform": "<= 0.75",
    "conditionally-transform/memory": "< 5 %",
    "flatten": "<= 1",
    "flatten-compile": "<= 1",
    "muon": "<= 0.95",
    "muon-compile": "<= 0.4",
    "lbfgs": "<= 1",
    "lbfgs/memory": "< 610 %",
    "lbfgs-digits": "<= 1",
    "import": "<= 1.5",
}


# One of each kind of work. (`test_only_and_markdown` has the one on square matrices.)
CHOSEN = [
    *("trace-step", "trace-small-lion", "compile", "eager", "clip-adamw"),
    *("multi-steps-update", "conditionally-transform", "flatten", "momentum"),
    *("lbfgs-digits", "import", "import-all"),
]


def test_targets():
    """They do not change in passing."""
    found = {}
    for case in TABLE:
        if case.ratio is not None:
            found[case.name] = f"<= {case.ratio:g}"
        if case.temporary is not None:
            found[f"{case.name}/memory"] = f"< {100 * case.temporary:g} %"
    assert found == TARGETS
    assert {*CHOSEN} <= {case.name for case in TABLE}


def test_rows_of_the_readme():
    """`--readme` measures what the table shows."""
    text = (ROOT / "README.md").read_text()
    shown = re.findall(
        r"^\| ([^|]*(?:50M|256|1000|import)[^|]*) \|", text, re.MULTILINE
    )
    settings = {"size": "50M", "leaves": 1000, "few": 100}
    measured = [case.what.format(**settings) for case in README]
    assert [row for row in shown if "memory" not in row] == measured


# One test, or two workers would run everything.
@pytest.mark.slow
def test_a_small_run_of_everything(tmp_path):
    output = tmp_path / "new" / "benchmarks.json"
    small = ["--size=20000", "--leaves=4", "--rounds=1", f"--output={output}"]
    small += [f"--only={name}" for name in CHOSEN]
    process = subprocess.run(
        [sys.executable, "-m", "benchmarks", *small],
        cwd=ROOT,
        text=True,
        capture_output=True,
    )
    assert process.returncode == 0, process.stderr
    lines = process.stderr.splitlines()
    for number, name in enumerate(CHOSEN, 1):
        progress = rf"{number}/{len(CHOSEN)} {name} \. [\d.]+ of .*'s time \(\d+ s\)"
        assert any(re.fullmatch(progress, line) for line in lines), name
    report = json.loads(output.read_text())
    check_rows({row["name"]: row for row in report["rows"]})
    check_machine(report)
    check_table(process.stdout, report)


def check_rows(rows: dict[str, Any]):
    assert {name.removesuffix("/memory") for name in rows} == {*CHOSEN}
    for name, row in rows.items():
        assert row["target"] == TARGETS.get(name, "")
    for name in ("momentum", "compile", "import-all"):
        assert rows[name]["met"] is None
    for name, row in rows.items():
        if row["unit"] == "ms":
            assert 0 < row["eqopt"] <= row["eqopt_median"]
            assert 0 < row["other"] <= row["other_median"]
            assert row["ratio"] == pytest.approx(row["eqopt"] / row["other"])
        else:
            assert row["unit"] == "MB"
            sizes = {"flatten": 4 * 8, "lbfgs-digits": 2410, "lbfgs": 10_000}
            size = next((n for what, n in sizes.items() if what in name), 20000)
            fraction = row["eqopt"] * 1e6 / (4 * size)
            assert row["eqopt_fraction"] == pytest.approx(fraction)
        if name in TARGETS:
            comparison, limit, *percent = TARGETS[name].split()
            if percent:
                met = row["eqopt_fraction"] < float(limit) / 100
            else:
                met = row["ratio"] <= float(limit)
            assert row["met"] is met, comparison


def check_machine(report: dict[str, Any]):
    assert report["settings"] == {"size": 20000, "leaves": 4, "rounds": 1}
    machine = report["machine"]
    assert machine["cpu"] and machine["cores"] >= 1 and machine["device"]
    assert machine["jax"] == jax.__version__
    assert machine["eqopt"] == version("eqopt")
    assert machine["type_checks"] is ("JAXTYPING_DISABLE" not in os.environ)


def check_table(printed: str, report: dict[str, Any]):
    header, *lines = printed.splitlines()
    assert re.split("  +", header) == COLUMNS
    for line, row in zip(lines, report["rows"], strict=False):
        assert line.startswith(f"{row['name']} ")
        assert row["what"] in line
        assert line.endswith({True: " yes", False: " no", None: ""}[row["met"]])
    assert report["machine"]["cpu"] in lines[-1]


@pytest.mark.slow
def test_only_and_markdown(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(square_leaves, "__defaults__", (2, 16))
    output = tmp_path / "benchmarks.json"
    names = "momentum", "muon", "Adam"
    chosen = [f"--only={name}" for name in names] + ["--size=20000", "--rounds=1"]
    with jax.numpy_dtype_promotion("standard"):  # for the sake of Optax
        main([*chosen, "--markdown", f"--output={output}"])
    rows = {row["name"]: row for row in json.loads(output.read_text())["rows"]}
    assert [*rows] == [x for name in names for x in (name, f"{name}/memory")]
    muon, memory = rows["muon"], rows["muon/memory"]
    assert muon["target"] == TARGETS["muon"] and memory["target"] == "< 20 %"
    assert muon["met"] is (muon["ratio"] <= 0.95)
    fraction = memory["eqopt"] * 1e6 / (4 * 2 * 16 * 16)
    assert memory["eqopt_fraction"] == pytest.approx(fraction)
    assert memory["met"] is (fraction < 0.2)
    table = capsys.readouterr().out.split("\n\n")[0].splitlines()
    assert table[0] == f"| {' | '.join(COLUMNS[1:-2])} |"
    assert len(table) == 2 + len(rows)
    assert all(line.startswith("| ") and line.count("|") == 5 for line in table)


@pytest.mark.slow
def test_table_of_optimizers(tmp_path, capsys):
    """A line for each, with time and memory, and what Optax has instead."""
    chosen = ["--only=Adam", "--only=Grams", "--size=20000", "--rounds=1"]
    output = f"--output={tmp_path / 'benchmarks.json'}"
    with jax.numpy_dtype_promotion("standard"):
        main([*chosen, "--optimizers", "--markdown", output])
    lines = capsys.readouterr().out.split("\n\n")[0].splitlines()
    header = "| Optimizer | eqopt | Optax | ratio | range | memory | Optax's |"
    assert lines[0].startswith(header)
    cells = [[cell.strip() for cell in line.split("|")] for line in lines[2:]]
    assert [(row[1], row[8]) for row in cells] == [("Adam", ""), ("Grams", "Adam")]
    assert all(line.count("|") == 9 for line in lines)


@pytest.mark.slow
def test_the_middle_of_several_processes(tmp_path, capsys):
    output = tmp_path / "benchmarks.json"
    chosen = ["--only=momentum", "--only=eager", "--size=20000", "--rounds=1"]
    main([*chosen, "--processes=3", "--markdown", f"--output={output}"])
    eager, time, memory = json.loads(output.read_text())["rows"]
    assert eager["name"] == "eager" and eager["lowest"] <= eager["ratio"]
    assert time["lowest"] <= time["ratio"] <= time["highest"]
    assert time["ratio"] == pytest.approx(time["eqopt"] / time["other"])
    assert memory["name"] == "momentum/memory" and memory["lowest"] is None
    ratio = "{ratio:.2f} ({lowest:.2f} to {highest:.2f})".format(**time)
    assert f" | {ratio} |\n" in capsys.readouterr().out


@pytest.mark.parametrize("ratios", [(0.9, 1.2, 1.0), (1.2, 0.9, 1.0)])
def test_which_process_is_the_middle_one(ratios, monkeypatch):
    case = README[0]
    runs = [[Row(case.name, "", "ms", r, 1.0, "", r)._asdict()] for r in ratios]
    monkeypatch.setattr(processes, "in_each", lambda *_: runs)
    (row,) = processes.in_processes([case], Settings(1, 1, 1), 3, ROOT / "x")
    assert (row.lowest, row.ratio, row.highest) == (0.9, 1.0, 1.2)


def test_lines_of_the_page_are_replaced():
    line = lambda name, ms: f"| {name} | {ms:.1f} ms | 2.0 ms |\n"
    begin, end = "<!-- optimizers -->\n", "<!-- end of optimizers -->\n"
    other = line("SGD", 0)
    old_header, header = (
        "| Optimizer |{x} eqopt |\n| :-- |{x} --: |\n" for x in ("", " range |")
    )
    page = (
        f"{other}{begin}\n{old_header}{line('Adam', 1)}{line('SGD', 2)}\n{end}{other}"
    )
    new = f"{header}{line('Lion', 4)}{line('SGD', 5)}"
    result = written(page, new, ["SGD", "Adam", "Lion"])
    lines = f"{line('SGD', 5)}{line('Adam', 1)}{line('Lion', 4)}"
    assert result == f"{other}{begin}\n{header}{lines}\n{end}{other}"


def test_the_page_has_the_columns_that_are_written():
    header = compact([]).splitlines()[0]
    assert f"\n{header}\n" in (ROOT / "docs/benchmarks.md").read_text()


def test_tables_are_written_into_their_pages(tmp_path, monkeypatch):
    """What is around AdamW has its own table, and the README has some of the rows."""
    for page in (ROOT / "README.md", ROOT / "docs" / "benchmarks.md"):
        (tmp_path / page.name).write_text(page.read_text())
    row = lambda name, against: Row(name, f"a {name}", "ms", 2.0, 4.0, against, 0.5)
    rows = [row("trace-step", "Optax"), row("import", "Equinox"), row("gpa", "AdamW")]
    monkeypatch.setattr(command, "ROOT", tmp_path)
    monkeypatch.setattr(command, "PAGE", tmp_path / "benchmarks.md")
    monkeypatch.setattr(command, "_measured", lambda *_: rows)
    main(["--write", f"--output={tmp_path / 'benchmarks.json'}"])
    lines = lambda page: (tmp_path / page).read_text().splitlines()
    assert "| a trace-step | 2.00 ms | 4.00 ms | 0.50 |" in lines("README.md")
    assert "| a import | 2.00 ms | 4.00 ms (Equinox) | 0.50 |" in lines("benchmarks.md")
    assert "| work | eqopt | AdamW | ratio |" in lines("benchmarks.md")
    assert not {"| a import |", "| a gpa |"} & {x[:10] for x in lines("README.md")}


@pytest.mark.slow
def test_table_of_gradients(tmp_path):
    output = tmp_path / "benchmarks.json"
    with jax.numpy_dtype_promotion("standard"):
        main(["--gradients", "--size=20000", "--rounds=1", f"--output={output}"])
    rows = json.loads(output.read_text())["rows"]
    assert {row["name"]: row["target"] for row in rows if row["target"]} == {
        "clipped-grad-mlp": "<= 2.5",
        "clipped-grad-cnn": "<= 2.5",
        "clipped-grad-transformer": "<= 2.5",
        "clipped-grad": "<= 0.02",
        "micro-grad": "<= 0.2",
        "ctc": "<= 1",
        "micro-value-and-grad-mlp": "<= 1.15",
        "micro-value-and-grad-cnn": "<= 1.15",
    }
    assert all(row["eqopt"] > 0 and row["other"] > 0 for row in rows)


def test_gradients_have_their_memory_beside_them():
    time = Row("x", "work: a call", "ms", 2.0, 4.0, "Optax", 0.5, lowest=0.4, highest=1)
    memory = Row("x/memory", "work: temporary memory", "MB", 3.0, 1.0, "Optax", 3.0)
    alone = time._replace(name="y")
    assert with_memory([time, memory, alone]).splitlines()[2:] == [
        "| work | 2.00 ms | 4.00 ms (Optax) | 0.50 (0.40 to 1.00) | 3.00 MB | 1.00 MB |"
    ]


@pytest.mark.slow
def test_different_gradients_are_refused():
    functions = Pair(gradients.plain, lambda *args: gradients.clipped(*args))
    measure = gradients.differentiating(gradients.mlp, functions)
    with pytest.raises(RuntimeError, match="not the same work"):
        measure(Settings(size=10_000, leaves=1, rounds=1))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--only", "adamm"], "adamm"),
        (["--size", "3"], "--size: must be an integer of at least 10000, but is '3'"),
        (["--rounds", "many"], "must be an integer of at least 1, but is 'many'"),
        (["--output", os.devnull + "/x.json"], "cannot write --output"),
        (["--only-this"], "--only-this"),
        (["--write", "--readme"], "--write needs all rows of a table"),
        (["--processes", "4"], "--processes: must be odd, but is '4'"),
    ],
)
def test_wrong_option(arguments, complaint, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    printed, errors = capsys.readouterr()
    assert not printed
    assert complaint in errors
    assert errors.count("\n") == 1


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
        (eqopt.Lion(1e-3), 0.01),
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


@pytest.mark.parametrize("method", ["step", "update"])
def test_multi_steps_runs_inner_once(method):
    counts = []

    class Counted(eqopt.AbstractTransformation):
        def init(self, params):
            return jnp.zeros((), jnp.int32)

        def update(self, updates, state, params=None, **extra):
            jax.debug.callback(lambda count: counts.append(int(count)), state)
            return updates, state + 1

    opt = eqopt.MultiSteps(Counted(), 8)
    call = jax.jit(getattr(opt, method))
    params = {"w": jnp.ones(3)}
    state = opt.init(params)
    for mini_step in range(24):
        _, state = call(params, state, params)
        jax.block_until_ready(state)
        jax.effects_barrier()
        assert counts == list(range((mini_step + 1) // 8))
