"""Values that users pass: integers, NumPy's numbers, JAX's modes."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt
from eqopt.microbatching import clipped_grad

from .laws.subjects import assert_close


PARAMS = {"w": jnp.arange(3.0) + 1}

PROJECTION = eqopt.projections.non_negative

# What is written, and what it means.
SAME = {
    "b1=0": (eqopt.Adam(1e-3, b1=0), eqopt.Adam(1e-3, b1=0.0)),
    "b1 as an array": (eqopt.Adam(1e-3, b1=jnp.asarray(0)), eqopt.Adam(1e-3, b1=0.0)),
    "RMSprop": (
        eqopt.RMSprop(0.1, decay=0, bias_correction=True),
        eqopt.RMSprop(0.1, decay=0.0, bias_correction=True),
    ),
    "privacy": (
        eqopt.DPSGD(1, 1, 1, 3, batch_size=6, clipped=True),
        eqopt.DPSGD(1.0, 1.0, 1.0, 3, batch_size=6.0, clipped=True),
    ),
    "schedule of integers": (eqopt.Adam(lambda count: 1), eqopt.Adam(1.0)),
    "decay of NumPy": (eqopt.Lion(0.1, b2=np.float64(0.9)), eqopt.Lion(0.1, b2=0.9)),
    "period of NumPy": (
        eqopt.MultiSteps(eqopt.Adam(1e-3), np.int64(1)),
        eqopt.MultiSteps(eqopt.Adam(1e-3), 1),
    ),
    "seed of NumPy": (
        eqopt.AddNoise(1.0, 1.0, np.int64(3)),
        eqopt.AddNoise(1.0, 1.0, 3),
    ),
    "mask of NumPy": (
        eqopt.AdamW(1e-3, mask={"w": np.bool_(True)}),
        eqopt.AdamW(1e-3, mask={"w": True}),
    ),
    "labels of NumPy": (
        eqopt.Partition({np.int64(0): eqopt.SGD(0.1)}, {"w": np.int64(0)}),
        eqopt.Partition({0: eqopt.SGD(0.1)}, {"w": 0}),
    ),
    "projected by NumPy": (
        eqopt.Project(eqopt.SGD(1.0), PROJECTION, {"w": np.bool_(True)}),
        eqopt.Project(eqopt.SGD(1.0), PROJECTION, {"w": True}),
    ),
    "offset as an array": (
        eqopt.Adafactor(0.1, decay_offset=jnp.asarray(1)),
        eqopt.Adafactor(0.1, decay_offset=1),
    ),
}


@pytest.mark.parametrize("name", SAME)
@pytest.mark.costly
def test_other_numbers(name):
    """Also if the optimizer is an argument of a compiled function."""
    train = eqx.filter_jit(lambda opt: opt.step(PARAMS, opt.init(PARAMS), PARAMS)[0])
    written, meant = SAME[name]
    assert_close(train(written), train(meant))
    assert_close(written.step(PARAMS, written.init(PARAMS), PARAMS)[0], train(meant))


def test_size_of_a_microbatch_by_numpy():
    loss = lambda w, x: jnp.sum((x @ w) ** 2)
    x = jnp.arange(18.0).reshape(6, 3)
    sizes = np.int64(3), 3
    by_numpy, expected = (
        eqx.filter_jit(clipped_grad(loss, 1.0, microbatch_size=n))(PARAMS["w"], x)[0]
        for n in sizes
    )
    assert_close(by_numpy, expected)


def test_arrays_that_the_compiled_function_closes_over():
    rate = jnp.array(0.1)
    init = lambda params: eqopt.Rprop(rate).init(params)
    assert_close(jax.jit(init)(PARAMS), eqopt.Rprop(0.1).init(PARAMS))
