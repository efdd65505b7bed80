"""Muon, beyond the laws and the comparison with Optax."""

import re
import typing

import jax
import jax.export
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqopt
from eqopt._optimizers.matrix.muon import Preconditioning


STANDARD = (3.4445, -4.775, 2.0315)
PRECONDITIONINGS = typing.get_args(Preconditioning)


def singular_values_mapped(x, preconditioning):
    """The iteration by its effect on singular values, in float64."""
    u, s, vh = np.linalg.svd(np.asarray(x, np.complex128), full_matrices=False)
    order = {"frobenius": 2, "spectral": np.inf}[preconditioning]
    s /= np.linalg.norm(s, order, axis=-1, keepdims=True)
    for a, b, c in [STANDARD] * 5:
        s = a * s + b * s**3 + c * s**5
    return (u * s[..., None, :]) @ vh


@pytest.mark.parametrize("preconditioning", ["frobenius", "spectral"])
@pytest.mark.parametrize("shape", [(4, 6), (3, 5, 2)])
@pytest.mark.costly
def test_complex_by_hand(shape, preconditioning):
    """The momentum is made orthogonal, with conjugate transposes."""
    numbers = eqopt.MatrixDimensionNumbers(-1, -2)
    opt = eqopt.ScaleByMuon(
        beta=0.8, preconditioning=preconditioning, weight_dimension_numbers=numbers
    )
    state, m = opt.init(jnp.zeros(shape, jnp.complex64)), 0
    for t in range(1, 4):
        g = jr.normal(jr.key(t), shape, jnp.complex64)
        updates, state = opt.update(g, state)
        m = 0.8 * m + 0.2 * np.asarray(g)
        direction = 0.8 * m / (1 - 0.8 ** (t + 1)) + 0.2 * g / (1 - 0.8**t)
        np.testing.assert_allclose(
            updates,
            singular_values_mapped(direction, preconditioning),
            rtol=1e-3,
            atol=1e-4,
        )


def module_for(platform, opt, params):
    step = jax.jit(lambda grads, state: opt.update(grads, state, params))
    exported = jax.export.export(step, platforms=[platform])
    return exported(params, opt.init(params)).mlir_module()


@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
@pytest.mark.parametrize("opt", [eqopt.Muon, eqopt.AdaMuon])
@pytest.mark.parametrize("shape", [(2, 5), (5, 2)])
@pytest.mark.costly
def test_no_matrix_is_transposed(opt, shape, platform):
    module = module_for(platform, opt(0.1), 3 * [jnp.ones(shape)])
    sizes = re.findall(r"stablehlo.transpose.*-> tensor<([\dx]+)x", module)
    assert all("5" not in size.split("x") for size in sizes)
    assert bool(sizes) is (shape == (5, 2))  # only the small factors are


SIDES_ALIKE = {
    "adaptive": eqopt.ScaleByMuon(adaptive=True),
    **{x: eqopt.ScaleByMuon(preconditioning=x) for x in PRECONDITIONINGS},
    "AdaMuon": eqopt.ScaleByAdaMuon(),
    "gram": eqopt.Orthogonalize("polar_express", gram=True, restarts=(2,)),
}


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.complex64])
@pytest.mark.parametrize("name", SIDES_ALIKE)
@pytest.mark.costly
def test_both_sides_are_alike(name, dtype):
    """The adjoint of a matrix has the adjoint update."""
    opt, g = SIDES_ALIKE[name], jr.normal(jr.key(0), (4, 9), dtype)
    wide, _ = opt.update(g, opt.init(g))
    tall, _ = opt.update(g.conj().T, opt.init(g.conj().T))
    np.testing.assert_allclose(tall.conj().T, wide, rtol=1e-3, atol=1e-5)
