"""Type checkers find no error in a user's script in their strict modes."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

import eqopt

from . import typed_script


SCRIPT = pathlib.Path(typed_script.__file__)
SOURCES = pathlib.Path(eqopt.__file__).parents[1]


def run(*command, folder):
    found = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        env={**os.environ, "MYPYPATH": str(SOURCES)},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stdout + found.stderr


def test_pyright(tmp_path):
    pytest.importorskip("pyright")
    config = {
        "include": [str(SCRIPT)],
        "strict": [str(SCRIPT)],
        "pythonVersion": "3.11",
        "extraPaths": [str(SOURCES)],
    }
    path = tmp_path / "pyrightconfig.json"
    path.write_text(json.dumps(config))
    run("pyright", "-p", str(path), "--pythonpath", sys.executable, folder=tmp_path)


def test_mypy(tmp_path):
    """Errors in the library are silent, as in a package that is installed."""
    pytest.importorskip("mypy")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.read_text())
    flags = "--strict", "--follow-imports=silent", "--cache-dir", str(tmp_path)
    run("mypy", *flags, "script.py", folder=tmp_path)


def test_it_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    typed_script.main()
