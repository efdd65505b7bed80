"""What `python -m benchmarks.accelerators` compiles, times, keeps and writes."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from benchmarks.accelerators import devices, stepping
from benchmarks.accelerators.__main__ import main
from benchmarks.accelerators.cases import CASES, SKIPPED, WRAPPER_CASES, cases
from benchmarks.accelerators.models import MODELS, params_of
from benchmarks.accelerators.report import PAGE, parts
from benchmarks.accelerators.results import add, read
from benchmarks.accelerators.stepping import copy_bandwidth, timed

import eqopt


# The bytes moved are multiples of the parameters': each array once, and for the norm of
# all gradients the gradients twice.
BY_HAND = {
    "SGD(0.1)": 3.0,
    "SGD(0.1, 0.9)": 5.0,
    "Adam(1e-3)": 7.0,
    "Chain(eqopt.ClipByGlobalNorm(1.0), eqopt.AdamW(1e-3))": 8.0,
}
# The plugin must start with JAX, so this is a process of its own.
COUNTS = """
import eqopt, jax.numpy as jnp
from benchmarks.accelerators.devices import device
device("h100")
from benchmarks.accelerators.stepping import counts
for opt in OPTS:
    found = counts(opt, "mats", jnp.float32, "h100")
    print(found["least"], found["most"], found["temporary"])
"""


@pytest.mark.skipif(not devices.is_installed("h100"), reason="needs the CUDA plugin")
def test_steps_on_an_h100():
    opts = ", ".join(f"eqopt.{opt}" for opt in BY_HAND)
    code = COUNTS.replace("OPTS", f"({opts})")
    env = os.environ | {"JAX_PLATFORMS": "cpu"}
    found = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
    numbers = [[float(x) for x in row.split()] for row in found.stdout.splitlines()]
    for (least, most, temporary), moved in zip(numbers, BY_HAND.values(), strict=True):
        assert least == most == pytest.approx(moved, abs=0.005)
        assert temporary < 0.001


def test_steps_are_timed_on_the_device_that_is_here(monkeypatch):
    shapes = {"w": jax.ShapeDtypeStruct((8, 8), jnp.float32)}
    monkeypatch.setattr(stepping, "params_of", lambda model, dtype: shapes)
    found = timed(eqopt.SGD(0.1), "lm", jnp.float32, copy_bandwidth(2**10, times=2))
    assert found["ms"] >= found["host"] > 0
    assert 3 <= found["limit"] < 3.2 and found["roofline"] > 0


def test_models():
    sizes = {
        model: sum(x.size for x in jax.tree.leaves(params_of(model)))
        for model in MODELS
    }
    assert sizes["lm"] == 109_069_312 and sizes["wide"] == 838_897_664
    assert params_of("mats", jnp.bfloat16)["l0"].dtype == jnp.bfloat16


def test_cases():
    assert list(cases(["SOAP", "MultiSteps"], "tpu")) == ["SOAP", "MultiSteps"]
    assert len(cases([], "tpu")) == len(CASES) - len(SKIPPED["tpu"])
    with pytest.raises(ValueError, match=r"unknown case 'Adam W'; expected .*AdamW, "):
        cases(["Adam W"], "h100")
    for case in WRAPPER_CASES.values():
        assert isinstance(case.ours(), eqopt.AbstractTransformation)


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("h100", "pip install --no-deps jax-cuda13-plugin=="),
        ("tpu", 'pip install "jax'),
    ],
)
def test_a_plugin_that_is_missing(name, command, monkeypatch):
    monkeypatch.setattr(devices, "is_installed", lambda name: False)
    with pytest.raises(ModuleNotFoundError, match="which is not installed") as caught:
        devices.device(name)
    assert command in str(caught.value)


def test_an_unknown_device(capsys):
    with pytest.raises(SystemExit):
        main(["v100"])
    message = "device: 'v100' is not one of h100, tpu; add --run to time"
    assert message in capsys.readouterr().err


def test_results_replace_older_ones(tmp_path):
    first = {"model": "lm", "case": "SGD", "library": "eqopt", "least": 3.0000001}
    add("h100", {"jax": "1"}, [first, first | {"library": "optax"}], tmp_path)
    add("h100", {"jax": "2"}, [first | {"least": 4.0}], tmp_path)
    about, rows = read("h100", tmp_path)
    assert about == {"jax": "2"}
    assert [row["least"] for row in rows] == [4.0, 3.0]
    assert read("tpu", tmp_path) == ({}, [])


def test_the_page_has_the_results():
    text = PAGE.read_text()
    for name, part in parts().items():
        is_there = f"<!-- {name} -->\n\n{part}\n\n<!-- end of {name} -->" in text
        assert is_there, "run `python -m benchmarks.accelerators --write`"
