"""What `python -m benchmarks.matrices` counts and prints. No test looks at a clock."""

import importlib.machinery
import json
import re
import sys
import types

import pytest
from benchmarks.contestants import Pair
from benchmarks.harness import Timing
from benchmarks.matrices.__main__ import main
from benchmarks.matrices.report import Row, middle, record, restored, table
from benchmarks.matrices.runs import OPTIMIZERS, PERIOD, SIZES, Cost, Matrices, cost

from ..docs.pages import DOCS
from ..methods import BY_FAMILY


def made_up(state, time, temporary):
    return Cost(state, Pair(Timing(time, time), Timing(1e-3, 1e-3)), temporary)


def test_table():
    small, large = SIZES
    rows = [
        Row("AdamW", small, made_up(2.0, 1e-3, 0.0)),
        Row("AdamW", large, made_up(2.0, 1e-3, 0.0)),
        Row("SOAP", small, made_up(6.02, 0.0123, 0.25)),
        Row("SOAP", large, made_up(6.01, 1.0, 0.5)),
    ]
    lines = table(rows).splitlines()
    head = "48 of 256 x 256 | of AdamW | temporary"
    assert lines[0].startswith(f"| Optimizer | State | {head} | 12 of 1024 x 1024 |")
    assert lines[1] == f"| :-- | {' | '.join(7 * ['--:'])} |"
    assert lines[2] == "| AdamW | 2.0 | 1 ms | 1.0 | 0 % | 1 ms | 1.0 | 0 % |"
    assert lines[3] == (
        "| SOAP | 6.0 | 12.3 ms | 12.3 | 25 % | 1000 ms | 1000.0 | 50 % |"
    )


def test_table_with_torch():
    """A column more, if torch was there, in which few rows have a number."""
    (small, _), plain = SIZES, made_up(6.0, 1e-3, 0.0)
    beside = Pair(Timing(3e-3, 4e-3), Timing(2e-3, 8e-3))
    rows = [
        Row("AdamW", small, plain),
        Row("SOAP", small, plain._replace(beside_torch=beside)),
    ]
    lines = table(rows).splitlines()
    assert lines[0].endswith("| temporary | of torch |")
    assert lines[1].endswith("| --: | --: |")
    assert lines[2].endswith("| 1.0 | 0 % |  |")
    assert lines[3].endswith("| 1.0 | 0 % | 1.50 |")
    assert record(rows[0])["beside_torch"] is None
    assert record(rows[1])["beside_torch"]["other"] == {"best": 2e-3, "median": 8e-3}
    assert [restored(record(row)) for row in rows] == rows


def test_the_middle_of_several_processes():
    """Of AdamW, and of torch, which another process may have."""
    size, processes = SIZES[0], []
    for time, of_torch in (5e-3, 0.7), (7e-3, 0.9), (6e-3, 0.8):
        beside = Pair(Timing(of_torch, of_torch), Timing(1.0, 1.0))
        cost = made_up(6.0, time, 0.25)._replace(beside_torch=beside)
        processes.append(Row("SOAP", size, cost))
    line = table([middle(processes)]).splitlines()[-1]
    assert line == "| SOAP | 6.0 | 6 ms | 6.0 (5.0 to 7.0) | 25 % | 0.80 |"


def test_the_page_has_all_optimizers():
    _, _, text = (DOCS / "benchmarks.md").read_text().partition("<!-- matrices -->")
    text, _, _ = text.partition("<!-- end of matrices -->")
    found = re.findall(r"^\| (\w.*?) \| [\d.]+ \|", text, re.MULTILINE)
    assert found == [*OPTIMIZERS]


def test_what_is_written(tmp_path, capsys, monkeypatch):
    page = tmp_path / "benchmarks.md"
    before, after = (
        "# Here\n\n<!-- matrices -->\n",
        "<!-- end of matrices -->\n\nMore\n",
    )
    page.write_text(f"{before}old\n{after}")
    program = "benchmarks.matrices.__main__"
    monkeypatch.setattr(f"{program}.PAGE", page)
    monkeypatch.setattr(f"{program}.OPTIMIZERS", ["AdamW", "SOAP"])
    monkeypatch.setattr(f"{program}.cost", lambda *_: made_up(2.0, 1e-3, 0.0))
    assert main(["--write", f"--output={tmp_path / 'matrices.json'}"]) == 0
    written, printed = page.read_text(), capsys.readouterr().out
    assert written.startswith(f"{before}\n## Methods for matrices\n")
    assert printed in written and "old" not in written
    assert "| SOAP | 2.0 | 1 ms |" in printed and "load at the start" in printed
    assert written.endswith(after)


def test_all_optimizers_of_matrices_are_there():
    assert {method.name for method in BY_FAMILY["matrix"]} < {*OPTIMIZERS}
    assert OPTIMIZERS["SOAP"].precondition_frequency == PERIOD
    assert OPTIMIZERS["APOLLO"].update_proj_gap == PERIOD


@pytest.mark.slow
def test_small_run(tmp_path, capsys):
    output = tmp_path / "new" / "matrices.json"
    names = "AdamW", "NorMuon", "SOAP, staggered", "SOAP, one-sided", "PSGDKron"
    chosen = [f"--only={name}" for name in names]
    sizes = ["--matrices=2x8", "--matrices=3x4"]
    assert main([*chosen, *sizes, "--rounds=1", f"--output={output}"]) == 0
    rows = json.loads(output.read_text())["rows"]
    found = [(row["name"], Matrices(**row["matrices"])) for row in rows]
    assert found == [(n, m) for n in names for m in (Matrices(2, 8), Matrices(3, 4))]
    # Besides the moments there are counts, and two numbers for each matrix of PSGD.
    states = 2, 2, 1 + 1 / 8, 1 + 1 / 4, 6, 6, 4, 4, 3 + 2 / 64, 3 + 2 / 16
    for row, state in zip(rows, states, strict=True):
        assert state <= row["state"] < state + 0.2
        assert 0 < row["seconds"]["best"] <= row["seconds"]["median"]
        ratio = row["seconds"]["best"] / row["adamw_seconds"]["best"]
        assert row["ratio"] == pytest.approx(ratio) and row["temporary"] >= 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0] for line in lines[2:7]] == [f"| {n}" for n in names]


@pytest.mark.slow
def test_three_processes(tmp_path, capsys):
    output = tmp_path / "matrices.json"
    chosen = ["--only=AdamW", "--matrices=2x8", "--rounds=1", "--processes=3"]
    assert main([*chosen, f"--output={output}"]) == 0
    (row,) = json.loads(output.read_text())["rows"]
    assert row["lowest"] <= row["ratio"] <= row["highest"]
    shown = "{ratio:.1f} ({lowest:.1f} to {highest:.1f})".format(**row)
    assert f" | {shown} | " in capsys.readouterr().out


@pytest.mark.slow
def test_comparison_with_torch(monkeypatch):
    """With a copy of SOAP that is a package; its authors' code is a file."""
    pytest.importorskip("torch")
    package = pytest.importorskip("pytorch_optimizer")
    soap = types.ModuleType("soap")
    soap.__spec__ = importlib.machinery.ModuleSpec("soap", None)
    soap.__dict__["SOAP"] = package.SOAP
    monkeypatch.setitem(sys.modules, "soap", soap)
    found = cost("SOAP", Matrices(2, 4), rounds=1).beside_torch
    assert found is not None and all(0 < x.best <= x.median for x in found)
    assert cost("AdamW", Matrices(2, 4), rounds=1).beside_torch is None


@pytest.mark.parametrize(
    ("argument", "complaint"),
    [
        ("--matrices=48", "must be such as 48x256, but is '48'"),
        ("--matrices=0x8", "must be such as 48x256, but is '0x8'"),
        ("--only=Adam", "invalid choice: 'Adam'"),
        ("--write", "is for the whole table: leave out --only"),
    ],
)
def test_wrong_option(argument, complaint, capsys):
    with pytest.raises(SystemExit, match="2"):
        main([argument] if argument != "--write" else [argument, "--only=SOAP"])
    assert complaint in capsys.readouterr().err
