"""Orthogonalize, beyond the laws, in float64."""

import re

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt
from eqopt._optimizers.matrix.parts import newton_schulz

from ...parity.matrices import NUMBERS, TABLES


# Rows are outputs, as in the formulas.


def orthogonalized(g, *arguments, **options):
    opt = eqopt.Orthogonalize(*arguments, weight_dimension_numbers=NUMBERS, **options)
    updates, _ = opt.update(g, opt.init(g))
    return np.asarray(updates)


def with_values(values, shape=(4, 6), seed=0):
    """A matrix with these singular values, and its singular vectors."""
    rng = np.random.default_rng(seed)
    u, _, vh = np.linalg.svd(rng.normal(size=shape), full_matrices=False)
    return (u * values) @ vh, u, vh


def composed(values, rows):
    for a, b, c in rows:
        values = a * values + b * values**3 + c * values**5
    return values


def test_all_tables_are_tested():
    assert {*TABLES} == {*newton_schulz.TABLES}


@pytest.mark.parametrize("shape", [(4, 6), (6, 4)])
@pytest.mark.parametrize("name", TABLES)
@pytest.mark.costly
def test_tables_map_singular_values(name, shape, x64):
    """With as many steps as rows, with fewer, and with more.

    They do not change singular vectors. Some tables repeat their last row, and others
    start again.
    """
    values = np.array([1.0, 0.3, 0.05, 0.002])
    g, u, vh = with_values(values, shape)
    rows, norm_factor, repeats_last = TABLES[name]
    start = values / (np.linalg.norm(values) * norm_factor)
    more = rows + ([rows[-1]] * 3 if repeats_last else rows[:3])
    with x64():
        for some in (rows, rows[:2], more):
            steps = None if some is rows else len(some)
            updates = orthogonalized(jnp.asarray(g), name, steps, eps=0.0)
            expected = (u * composed(start, some)) @ vh
            np.testing.assert_allclose(updates, expected, atol=1e-10)


@pytest.mark.parametrize("restarts", [(), (2,), (0, 1, 2, 3, 4)])
@pytest.mark.parametrize("shape", [(4, 9), (9, 4)])
@pytest.mark.parametrize("name", TABLES)
@pytest.mark.costly
def test_the_gram_iteration_gives_the_same_result(name, shape, restarts, x64):
    g, _, _ = with_values(np.array([1.0, 0.5, 0.2, 0.1]), shape)
    with x64():
        g = jnp.asarray(g)
        plain = orthogonalized(g, name)
        by_gram = orthogonalized(g, name, gram=True, restarts=restarts)
    np.testing.assert_allclose(by_gram, plain, rtol=0, atol=1e-12)


def test_the_gram_iteration_is_not_used_for_square_matrices():
    program = lambda **options: str(
        jax.make_jaxpr(lambda g: orthogonal(g, **options))(jnp.ones((4, 4)))
    )
    orthogonal = lambda g, **options: eqopt.Orthogonalize(**options).update(g, None)[0]
    assert program(gram=True) == program()


COARSE = ["standard", "dion", "polar_express", "aol", "deepseek", "simple"]


@pytest.mark.parametrize("name", COARSE)
@pytest.mark.costly
def test_in_16_bits(name):
    """It does not diverge, and the directions stay."""
    g = jnp.asarray(with_values(np.linspace(1, 0.01, 16), (16, 40))[0], jnp.float32)
    fine = orthogonalized(g, name, dtype=jnp.float32)
    for options in ({"dtype": jnp.bfloat16}, {"dtype": jnp.float16, "gram": True}):
        coarse = orthogonalized(g, name, **options)
        assert coarse.dtype == jnp.float32 and (coarse != fine).any()
        assert np.linalg.norm(coarse, 2) < 1.25  # 1.21 without rounding
        length = np.linalg.norm(fine) * np.linalg.norm(coarse)
        assert np.vdot(fine, coarse) > 0.98 * length


def products(opt, platform, dtype=jnp.float32):
    """The dtypes of the matrix products that are compiled for a platform."""
    g = jnp.ones((4, 8), dtype)
    exported = jax.export.export(jax.jit(opt.update), platforms=[platform])
    text = exported(g, opt.init(g)).mlir_module()
    return {*re.findall(r"dot_general.*-> tensor<(?:\d+x)*(.*)>", text)}


@pytest.mark.parametrize(
    ("opt", "on_cpu", "on_accelerator"),
    [
        (eqopt.Orthogonalize(), "f32", "bf16"),
        *((eqopt.Orthogonalize(name), "f32", "bf16") for name in COARSE),
        *(
            (eqopt.Orthogonalize(name), "f32", "f32")
            for name in TABLES
            if name not in COARSE
        ),
        (eqopt.Orthogonalize((2.0, -1.5, 0.5)), "f32", "f32"),
        (eqopt.Orthogonalize(gram=True), "f32", "f32"),
        (eqopt.Orthogonalize(dtype=jnp.float32), "f32", "f32"),
        (eqopt.Orthogonalize(dtype=jnp.bfloat16), "bf16", "bf16"),
        (eqopt.Orthogonalize(gram=True, dtype=jnp.float16), "f16", "f16"),
        (eqopt.ScaleByNorMuon(), "f32", "bf16"),
        (eqopt.ScaleByMuon(), "f32", "f32"),
        (eqopt.ScaleByMuon(ns_dtype=jnp.bfloat16), "bf16", "bf16"),
    ],
    ids=repr,
)
@pytest.mark.costly
def test_precision_by_platform(opt, on_cpu, on_accelerator, x64):
    assert products(opt, "cpu") == {on_cpu}
    for platform in ("cuda", "tpu"):
        for dtype in (jnp.float32, jnp.bfloat16):
            assert products(opt, platform, dtype) == {on_accelerator}
    assert products(opt, "cuda", jnp.complex64) == {"complex<f32>"}
    with x64():
        expected = on_accelerator if "dtype=" in repr(opt) else "f64"
        assert products(opt, "cuda", jnp.float64) == {expected}


@pytest.mark.parametrize("shape", [(2, 8), (8, 2), (3, 3)])
@pytest.mark.slow
def test_scales(shape, x64):
    (m, n), g = shape, np.random.default_rng(0).normal(size=shape)
    factors = {
        "shape": max(1, m / n) ** 0.5,
        "spectral": max(m, n) ** 0.5,
        "unit_rms": (m / n) ** 0.5,
        "match_rms": 0.2 * max(m, n) ** 0.5,
    }
    with x64():
        g = jnp.asarray(g)
        plain = orthogonalized(g)
        for scale, factor in factors.items():
            updates = orthogonalized(g, scale=scale)
            np.testing.assert_allclose(updates, factor * plain, rtol=1e-12)


@pytest.mark.parametrize("given", [(1.0, 2.0), ((1.0, 2.0),), np.ones((0, 3))])
def test_coefficients_of_another_shape(given):
    message = r"must have shape \(3,\), or \(steps, 3\)"
    for make in (eqopt.Orthogonalize, lambda x: eqopt.Muon(0.1, ns_coeffs=x)):
        with pytest.raises(ValueError, match=message):
            make(given)


def test_cans_in_bfloat16():
    message = "Orthogonalize: `dtype` must not be bfloat16 with `coefficients='cans'`"
    with pytest.raises(ValueError, match=message):
        eqopt.Orthogonalize("cans", dtype="bfloat16")
