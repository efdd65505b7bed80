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


@law(QUICK, ROWS)
@pytest.mark.costly
def test_own_stacks_are_separate_matrices(row):
    """With dimension numbers, a stack trains like its matrices in separate leaves."""
    opt = eqopt.tree.set(row(), all=True, weight_dimension_numbers=NUMBERS)
    rng = np.random.default_rng(0)
    start = rng.normal(size=(3, 4, 4)).astype(np.float32)
    gradients = rng.normal(size=(2, 3, 4, 4)).astype(np.float32)
    together, _ = train(
        opt, jnp.asarray(start), 2, grads=lambda _, i: jnp.asarray(gradients[i])
    )
    apart, _ = train(
        opt,
        [*map(jnp.asarray, start)],
        2,
        grads=lambda _, i: [*map(jnp.asarray, gradients[i])],
    )
    assert_close(together, jnp.stack(apart), rtol=1e-4, atol=1e-5)
