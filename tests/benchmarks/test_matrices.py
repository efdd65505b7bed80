"""What `python -m benchmarks.matrices` counts and prints. No test looks at a clock."""

import json
import re

import pytest
from benchmarks.matrices.__main__ import main
from benchmarks.matrices.runs import OPTIMIZERS, PERIOD, Matrices

from ..docs.pages import DOCS
from ..methods import BY_FAMILY


def test_the_page_has_all_optimizers():
    _, _, text = (DOCS / "benchmarks.md").read_text().partition("<!-- matrices -->")
    text, _, _ = text.partition("<!-- end of matrices -->")
    found = re.findall(r"^\| (\w.*?) \| [\d.]+ \|", text, re.MULTILINE)
    assert found == [*OPTIMIZERS]


def test_all_optimizers_of_matrices_are_there():
    assert {method.name for method in BY_FAMILY["matrix"]} < {*OPTIMIZERS}
    assert OPTIMIZERS["SOAP"].precondition_frequency == PERIOD
    assert OPTIMIZERS["APOLLO"].update_proj_gap == PERIOD


@pytest.mark.slow
def test_small_run(tmp_path, capsys):
    output = tmp_path / "new" / "matrices.json"
    names = "AdamW", "NorMuon", "SOAP, staggered", "SOAP, one-sided", "PSGDKron"
    chosen = [f"--only={name}" for name in names]
    size = "--matrices=2x8"
    assert main([*chosen, size, "--rounds=1", f"--output={output}"]) == 0
    rows = json.loads(output.read_text())["rows"]
    found = [(row["name"], Matrices(**row["matrices"])) for row in rows]
    assert found == [(name, Matrices(2, 8)) for name in names]
    # Besides the moments there are counts, and two numbers for each matrix of PSGD.
    states = 2, 1 + 1 / 8, 6, 4, 3 + 2 / 64
    for row, state in zip(rows, states, strict=True):
        assert state <= row["state"] < state + 0.2
        assert 0 < row["seconds"]["best"] <= row["seconds"]["median"]
        ratio = row["seconds"]["best"] / row["adamw_seconds"]["best"]
        assert row["ratio"] == pytest.approx(ratio) and row["temporary"] >= 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0] for line in lines[2:7]] == [f"| {n}" for n in names]
