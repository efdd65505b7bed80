"""What `python -m benchmarks.accelerators` compiles, times, keeps and writes."""

import jax
import jax.numpy as jnp
import pytest
from benchmarks.accelerators import stepping
from benchmarks.accelerators.cases import CASES, SKIPPED, WRAPPER_CASES, cases
from benchmarks.accelerators.models import MODELS, params_of
from benchmarks.accelerators.report import PAGE, parts
from benchmarks.accelerators.stepping import copy_bandwidth, timed

import eqopt


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


def test_the_page_has_the_results():
    text = PAGE.read_text()
    for name, part in parts().items():
        is_there = f"<!-- {name} -->\n\n{part}\n\n<!-- end of {name} -->" in text
        assert is_there, "run `python -m benchmarks.accelerators --write`"
