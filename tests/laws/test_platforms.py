"""Accelerators compile the equations as written, and read each slot."""

import re

import equinox as eqx
import jax
import jax.tree_util as jtu
import pytest

from .registry import law
from .subjects import params_of


def programs(opt):
    """The arrays of a state, and a step with them as lowered for each platform.

    The programs have the names of their scopes.
    """
    params = params_of()
    arrays, others = eqx.partition(opt.init(params), eqx.is_array)

    def step(params, arrays):
        new = opt.step(params, eqx.combine(arrays, others), params)
        return eqx.filter(new, eqx.is_array)

    traced = jax.jit(step).trace(params, arrays)
    lower = lambda platform: traced.lower(lowering_platforms=(platform,))
    texts = [lower(p).as_text(debug_info=True) for p in ("cuda", "tpu")]
    return arrays, texts


# The arrays of a state that the next step does not read: it computes them from others.
REPORTS = {
    *("curvature_error", "decrease_error", "found_nan", "grad", "grad_norm", "guess"),
    *("last_finite", "measurement", "measurements", "norm", "num_linesearch_steps"),
    *("optimality", "ready", "skip_state", "skipped_last", "value", "win_rate"),
}
# They use `sum_over_leaves(..., in_own_pass=True)`.
SUMS_IN_OWN_PASS = ("DAdaptAdamW", "MoMo")


@law()
@pytest.mark.costly
def test_accelerators_compile_the_equation(row):
    arrays, (gpu, tpu) = programs(row())
    assert "optimization_barrier" not in tpu
    sums = row.name.startswith(SUMS_IN_OWN_PASS)
    assert ("optimization_barrier" in gpu) == sums
    # Hyperparameters in a state depend on their old values: see `recorded`.
    finds_it = "search" in row.name.lower() or "LBFGS" in row.name
    found = {"learning_rate"} if finds_it else set()
    assert unread(arrays, gpu) <= REPORTS | found


def unread(arrays, program):
    """The fields of the arrays of a state that are no arguments of a program."""
    paths = {jtu.keystr(path) for path, _ in jtu.tree_leaves_with_path(arrays)}
    [arguments] = re.findall(r"@main\((.*)\) ->", program)
    paths -= {*re.findall(r'loc\("arrays([^"]*)"', arguments)}
    return {re.findall(r"\.(\w+)", path)[-1] for path in paths}
