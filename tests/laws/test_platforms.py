"""Accelerators compile the equation as written, with nothing that is only for a CPU."""

import equinox as eqx
import jax
import pytest

import eqopt
from eqopt._cpu.order import SCOPE

from .registry import law
from .subjects import params_of


def programs(opt):
    """A step as lowered for each platform, with the names of its scopes."""
    params = params_of()
    arrays, others = eqx.partition(opt.init(params), eqx.is_array)

    def step(params, arrays):
        new = opt.step(params, eqx.combine(arrays, others), params)
        return eqx.filter(new, eqx.is_array)

    traced = jax.jit(step).trace(params, arrays)
    lower = lambda platform: traced.lower(lowering_platforms=(platform,))
    return [lower(p).as_text(debug_info=True) for p in ("cpu", "cuda", "tpu")]


@law()
def test_accelerators_compile_the_equation(row):
    _, *others = programs(row())
    for text in others:
        assert SCOPE not in text and "optimization_barrier" not in text


@pytest.mark.parametrize(
    "opt",
    [eqopt.Lion(0.1), eqopt.ADOPT(0.1), eqopt.ClipByGlobalNorm(1.0)],
    ids=lambda opt: type(opt).__name__,
)
def test_a_cpu_compiles_its_order(opt):
    """This shows that the law above looks for the right scope."""
    text, *_ = programs(opt)
    assert SCOPE in text
