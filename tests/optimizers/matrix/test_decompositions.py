"""Which decompositions a step has, whether they always run, and how many run."""

import collections

import jax
import jax.numpy as jnp
import pytest

import eqopt

from ...interpreter import is_condition, opened, programs_in
from ...parity.matrices import NUMBERS


DECOMPOSITIONS = {"eigh", "geqrf", "householder_product", "qr", "svd"}


def decompositions(fn, *arguments, names=DECOMPOSITIONS):
    """How often `fn` always has the named primitives, and under a condition."""
    always, sometimes = collections.Counter(), collections.Counter()

    def walk(program, found):
        _, _, equations, _ = opened(program)
        for equation in equations:
            found += collections.Counter({equation.name} & names)
            for inner in programs_in(equation):
                walk(inner, sometimes if is_condition(equation) else found)

    walk(jax.make_jaxpr(lambda *x: fn(*x))(*arguments), always)
    return always, sometimes


def of(cls, *args, **kwargs):
    return cls(*args, **kwargs, weight_dimension_numbers=NUMBERS)


# A QR decomposition is in two branches: one for a CPU, and one for accelerators.
EIGH, ONE_SIDE, QR = {"eigh": 4}, {"eigh": 2}, {"eigh": 4, "qr": 8}
KL = {"graft": None, "kl": True, "b2": 0.9}
PSGD = {"max_skew": None}
# Transformations, and what they have for all sides or matrices. (PSGD has no
# decompositions; searching for the longest column marks a fit.)
CONDITIONS = {
    "Shampoo": (of(eqopt.ScaleByShampoo, b2=0.9), EIGH),
    "Shampoo, staggered": (of(eqopt.ScaleByShampoo, b2=0.9, stagger=True), EIGH),
    "KL-Shampoo": (of(eqopt.ScaleByShampoo, **KL), QR),
    "KL-Shampoo, staggered": (of(eqopt.ScaleByShampoo, **KL, stagger=True), QR),
    "SOAP": (of(eqopt.ScaleBySOAP), QR),
    "SOAP, staggered": (of(eqopt.ScaleBySOAP, stagger=True), QR),
    "SOAP, from the first step": (of(eqopt.ScaleBySOAP, skip_first=False), QR),
    "APOLLO": (of(eqopt.ScaleByAPOLLO, 2, proj="svd"), ONE_SIDE),
    "GaLore": (of(eqopt.ScaleByGaLore, 2), ONE_SIDE),
    "PSGD": (of(eqopt.ScaleByPSGDKron, **PSGD), {"argmax": 8}),
    "PSGD, staggered": (of(eqopt.ScaleByPSGDKron, **PSGD, stagger=True), {"argmax": 8}),
}


@pytest.mark.parametrize("name", CONDITIONS)
@pytest.mark.slow
def test_decompositions_are_under_conditions(name):
    opt, expected = CONDITIONS[name]
    params = [jnp.ones((3, 4)), jnp.ones((2, 4, 5))]
    arguments = params, opt.init(params)
    names = DECOMPOSITIONS | {*expected}
    assert decompositions(opt.update, *arguments, names=names) == ({}, expected)


def test_decompositions_are_found():
    """Also inside the kernel of a leaf, so the test above would find them."""
    muon = eqopt.ScaleByMuon(preconditioning="spectral")
    x = jnp.eye(3)
    state = muon.init(x)
    for fn in (jnp.linalg.eigh, lambda x: muon.update(x, state)):
        assert decompositions(fn, x) == ({"eigh": 1}, {})


def executed_decompositions(monkeypatch, opt, params, steps):
    """The number of decompositions that run in each step, so only in taken branches."""
    calls = []
    for name in ("eigh", "qr"):
        plain = getattr(jnp.linalg, name)

        def counted(*args, plain=plain, **kwargs):
            jax.debug.callback(lambda: calls.append(None))
            return plain(*args, **kwargs)

        monkeypatch.setattr(jnp.linalg, name, counted)
    jax.clear_caches()  # other tests may have traced these branches, without counting
    state, update, counts = opt.init(params), jax.jit(opt.update), []
    for t in range(steps):
        grads = [jax.random.normal(jax.random.key(t), p.shape) for p in params]
        _, state = update(grads, state)
        jax.effects_barrier()
        counts.append(len(calls))
        calls.clear()
    return counts


SOAP = {"precondition_frequency": 3}
SHAMPOO = {**SOAP, "start_preconditioning_step": 3, "b2": 0.9}
AT_ONCE, IN_TURN = [0, 0, 6, 0, 0, 6, 0, 0], [0, 0, 6, 2, 2, 2, 2, 2]


@pytest.mark.parametrize(
    ("opt", "number", "counts"),
    [
        (eqopt.ScaleBySOAP(**SOAP), 3, [6, 0, 0, 6, 0, 0, 6]),
        (eqopt.ScaleBySOAP(**SOAP, stagger=True), 3, [6, 2, 2, 2, 2, 2, 2]),
        # Of five matrices, at most two have the same turn.
        (eqopt.ScaleBySOAP(**SOAP, stagger=True), 5, [10, 2, 4, 4, 2, 4, 4]),
        (eqopt.ScaleByShampoo(**SHAMPOO), 3, AT_ONCE),
        (eqopt.ScaleByShampoo(**SHAMPOO, stagger=True), 3, IN_TURN),
        (eqopt.ScaleByShampoo(**SHAMPOO | KL), 3, AT_ONCE),
        (eqopt.ScaleByShampoo(**SHAMPOO | KL, stagger=True), 3, IN_TURN),
    ],
)
@pytest.mark.slow
def test_decompositions_at_run_time(opt, number, counts, monkeypatch):
    """Two for each matrix: every three steps, or by turns."""
    params = [jnp.zeros((20, 21))] * number
    assert executed_decompositions(monkeypatch, opt, params, len(counts)) == counts
