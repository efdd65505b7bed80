"""A release of JAX that changes its internals costs memory or time, but no result."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from eqopt import _jax_internals


ROOT = pathlib.Path(__file__).parents[1]
# All of them compile nearly the same small programs, which the first one leaves behind.
ENVIRONMENT = {**os.environ, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}


def result(release):
    command = [sys.executable, "-m", "tests.other_release", release]
    run = subprocess.run(
        command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    *numbers, is_traced, has_factors = run.stdout.split()
    return np.array(numbers, float), is_traced, has_factors


@pytest.mark.slow
def test_other_releases():
    expected, is_traced, has_factors = result("as it is")
    assert len(expected) > 500 and (is_traced, has_factors) == ("False", "True")
    for release in ("gone", "deprecated", "changed"):
        found, is_traced, has_factors = result(release)
        np.testing.assert_allclose(found, expected, 1e-4, 1e-6)
        # So something was off.
        assert (is_traced, has_factors) == ("False", "False")


def test_failures_are_not_hidden_from_tests(monkeypatch):
    failing = lambda: _jax_internals.attempt(lambda: {}["eqns"], lambda: "plain")
    with pytest.raises(KeyError):
        failing()
    monkeypatch.setattr(_jax_internals, "raises", False)
    assert failing() == "plain"
