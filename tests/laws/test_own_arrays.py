"""Arrays with more than two axes that no layer of Equinox describes."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import eqopt

from ..parity.matrices import NUMBERS
from .registry import REGISTRY, law
from .subjects import assert_close, train


def _takes_numbers(row):
    names = {field.name for field in dataclasses.fields(row.subject)}
    return "weight_dimension_numbers" in names


ROWS = {row.name for row in REGISTRY if _takes_numbers(row)}
QUICK = {"AdamP", "MARS", "Muon", "SM3", "SOAP", "ScaleByMuon"}
# Words in the documentation of the classes that have a rule for all arrays.
RULES = {
    eqopt.ScaleByFactoredRMS: "the shape of a parameter decides whether it is a matrix",
    eqopt.ScaleByCAME: "the last two axes of all arrays with at least two axes",
    eqopt.ScaleBySM3: "With `None`, each axis is covered",
}
OF_ANY_ARRAY = {cls: cls for cls in RULES} | {
    eqopt.Adafactor: eqopt.ScaleByFactoredRMS,
    eqopt.CAME: eqopt.ScaleByCAME,
    eqopt.SM3: eqopt.ScaleBySM3,
}


@law(QUICK, ROWS)
def test_own_arrays_are_not_skipped_in_silence(row):
    params = {"block": {"own": jnp.ones((3, 4, 4)), "gain": jnp.ones((3, 4))}}
    if row.subject in OF_ANY_ARRAY:
        row().init(params)
        documented = OF_ANY_ARRAY[row.subject]
        assert RULES[documented] in " ".join(documented.__doc__.split())
        return
    found = r"`\['block'\]\['own'\]` has shape \(3, 4, 4\)"
    with pytest.raises(ValueError, match=found):
        row().init(params)


def after_two_steps(row, like, numbers=NUMBERS):
    """Of random arrays that `like` reshapes, or takes apart."""
    opt = eqopt.tree.set(row(), all=True, weight_dimension_numbers=numbers)
    start, *grads = np.random.default_rng(0).normal(size=(3, 48)).astype(np.float32)
    grads_of = lambda _, i: like(jnp.asarray(grads[i]))
    return train(opt, like(jnp.asarray(start)), 2, grads=grads_of)[0]


@law(QUICK, ROWS)
@pytest.mark.costly
def test_own_stacks_are_separate_matrices(row):
    """With dimension numbers, a stack trains like its matrices in separate leaves."""
    together = after_two_steps(row, lambda x: x.reshape(3, 4, 4))
    apart = after_two_steps(row, lambda x: [*x.reshape(3, 4, 4)])
    assert_close(together, jnp.stack(apart), rtol=1e-4, atol=1e-5)


@law(QUICK, ROWS)
@pytest.mark.costly
def test_a_kernel_is_a_matrix(row):
    """Of a convolution: its outputs, and all others."""
    numbers = eqopt.MatrixDimensionNumbers((1, 2, 3), 0)
    kernel = after_two_steps(row, lambda x: x.reshape(4, 3, 2, 2), numbers)
    matrix = after_two_steps(row, lambda x: x.reshape(4, 12))
    assert_close(kernel.reshape(4, 12), matrix, rtol=1e-4, atol=1e-5)
