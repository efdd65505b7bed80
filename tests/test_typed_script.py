"""Type checkers find no error in a user's script in their strict modes."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

import eqopt

from . import typed_script


SCRIPT = pathlib.Path(typed_script.__file__).read_text()
SOURCES = pathlib.Path(eqopt.__file__).parents[1]
# Where pyright looks for an interpreter and its packages.
PATH = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])


def check(script: str, folder: pathlib.Path, *command: str) -> str:
    """What a type checker prints of a script."""
    (folder / "script.py").write_text(script)
    found = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(SOURCES), "PATH": PATH},
        capture_output=True,
        text=True,
    )
    return found.stdout + found.stderr


def test_pyright(tmp_path):
    pytest.importorskip("pyright")
    config = {
        "include": ["script.py"],
        "strict": ["script.py"],
        "pythonVersion": "3.11",
        "extraPaths": [str(SOURCES)],
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config))
    found = check(SCRIPT, tmp_path, "pyright", "--pythonpath", sys.executable)
    assert "0 errors" in found and "No source files" not in found, found


WRONG_PARTS = """
import eqopt
eqopt.Chain([eqopt.Adam(1e-3)])
eqopt.Chain(eqopt.Adam)
"""


def test_mypy(tmp_path):
    """It finds what is wrong in another script, and only that."""
    pytest.importorskip("mypy")
    (tmp_path / "wrong.py").write_text(WRONG_PARTS)
    command = "mypy", "--strict", "--cache-dir", str(tmp_path), "script.py", "wrong.py"
    found = check(SCRIPT, tmp_path, *command)
    errors = re.findall(r"^(\S+\.py):\d+: error: (.*)", found, re.MULTILINE)
    expected = 'Argument 1 to "Chain" has incompatible type'
    assert [file for file, _ in errors] == 2 * ["wrong.py"], found
    assert all(text.startswith(expected) for _, text in errors), found


def test_it_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    typed_script.main()


@pytest.mark.slow
def test_public_types_are_known(tmp_path):
    """`pyright --verifytypes` counts the public names without an unknown type."""
    pytest.importorskip("pyright")
    command = "pyright", "--verifytypes", "eqopt", "--ignoreexternal"
    found = check("", tmp_path, *command)
    score = re.search(r"Type completeness score: ([\d.]+)%", found)
    assert score and float(score[1]) >= 95, found[-1000:]
