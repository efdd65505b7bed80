"""Muon, beyond the laws and the comparison with Optax."""

import re
import typing

import equinox as eqx
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


def singular_values_mapped(x, steps=5):
    """The iteration by its effect on singular values, in float64."""
    u, s, vh = np.linalg.svd(np.asarray(x, np.complex128), full_matrices=False)
    s /= np.linalg.norm(s, axis=-1, keepdims=True)
    for a, b, c in [STANDARD] * steps:
        s = a * s + b * s**3 + c * s**5
    return (u * s[..., None, :]) @ vh


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.complex64])
@pytest.mark.parametrize("shape", [(4, 6), (6, 4), (3, 5, 2)])
@pytest.mark.costly
def test_by_hand(shape, dtype, nesterov):
    """The momentum is made orthogonal, with conjugate transposes if it is complex."""
    opt = eqopt.ScaleByMuon(
        beta=0.8,
        nesterov=nesterov,
        weight_dimension_numbers=eqopt.MatrixDimensionNumbers(-1, -2),
    )
    params = jnp.zeros(shape, dtype)
    state, m = opt.init(params), 0
    for t in range(1, 4):
        g = jr.normal(jr.key(t), shape, dtype)
        updates, state = opt.update(g, state)
        m = 0.8 * m + 0.2 * np.asarray(g)
        direction = m
        if nesterov:
            direction = 0.8 * m / (1 - 0.8 ** (t + 1)) + 0.2 * g / (1 - 0.8**t)
        np.testing.assert_allclose(
            updates, singular_values_mapped(direction), rtol=1e-3, atol=1e-4
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


class Model(eqx.Module):
    embedding: eqx.nn.Embedding
    conv: eqx.nn.Conv1d
    layers: eqx.nn.Linear  # stacked
    norms: eqx.nn.LayerNorm  # stacked
    scale: jax.Array

    def __init__(self, key):
        keys = jr.split(key, 4)
        self.embedding = eqx.nn.Embedding(7, 3, key=keys[0])
        self.conv = eqx.nn.Conv1d(3, 4, 2, key=keys[1])
        make = lambda key: eqx.nn.Linear(4, 6, key=key)
        self.layers = eqx.filter_vmap(make)(jr.split(keys[2], 3))
        self.norms = eqx.filter_vmap(lambda _: eqx.nn.LayerNorm(4))(jnp.arange(3))
        self.scale = jnp.ones(())


@pytest.mark.slow
def test_models():
    """Matrices take orthogonal steps, and all other parameters take Adam's steps."""
    model = Model(jr.key(0))
    grads = jax.tree.map(
        lambda p: jnp.cos(jnp.arange(p.size, dtype=p.dtype) ** 2).reshape(p.shape),
        eqx.filter(model, eqx.is_inexact_array),
    )
    opt, adam = eqopt.Muon(0.1), eqopt.Adam(0.1, nesterov=True)
    state = opt.init(model)
    updates, state = opt.update(grads, state, model)
    expected, _ = adam.update(grads, adam.init(model), model)
    is_matrix = lambda m: (m.conv.weight, m.layers.weight)
    others = lambda m: eqx.tree_at(is_matrix, m, (None, None))
    assert bool(eqx.tree_equal(others(updates), others(expected), rtol=1e-5))
    for weight, g, out in [
        (updates.conv.weight.reshape(4, 6), grads.conv.weight.reshape(4, 6), 4),
        (updates.layers.weight, grads.layers.weight, 6),
    ]:
        factor = 0.1 * max(1, out / weight.shape[-1]) ** 0.5
        expected = -factor * singular_values_mapped(g)
        np.testing.assert_allclose(weight, expected, rtol=1e-3, atol=1e-4)
    # Neither stores state for the other's parameters, and there is one learning rate.
    assert len(jax.tree.leaves(eqopt.tree.get(state, "ScaleByMuonState").mu)) == 2
    adam_state = eqopt.tree.get(state, "ScaleByAdamState")
    assert adam_state.mu.conv.weight is None
    assert eqopt.tree.get(state, "learning_rate") == jnp.float32(0.1)


def test_the_fallback_is_any_optimizer():
    params = {"matrix": jnp.ones((2, 2)), "vector": jnp.ones(2)}
    opt = eqopt.Muon(0.1, weight_decay=0.5, fallback=eqopt.SGD(1.0))
    zeros = jax.tree.map(jnp.zeros_like, params)
    new, _ = opt.step(zeros, opt.init(params), params)
    np.testing.assert_allclose(new["matrix"], 0.95)
    np.testing.assert_allclose(new["vector"], 1.0)
    new, _ = opt.step(params, opt.init(params), params)
    np.testing.assert_allclose(new["vector"], 0.0)
    # Without a fallback, all parameters decay.
    opt = eqopt.Muon(0.1, weight_decay=0.5)
    new, _ = opt.step(zeros, opt.init(params), params)
    for x in new.values():
        np.testing.assert_allclose(x, 0.95, rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ns_coeffs": (1.0, 2.0)}, r"shape \(3,\), or \(steps, 3\) .* shape \(2,\)"),
        ({"ns_coeffs": jnp.ones((0, 3))}, r"has shape \(0, 3\)"),
    ],
)
def test_errors(arguments, message):
    for make in (eqopt.ScaleByMuon, lambda **kwargs: eqopt.Muon(0.1, **kwargs)):
        with pytest.raises(ValueError, match=message):
            make(**arguments)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({}, {"weight_decay": 0.0}),
        (
            {"beta": 0.5, "weight_decay": 0.3, "consistent_rms": 0.2, "ns_steps": 4},
            {
                "momentum": 0.5,
                "weight_decay": 0.3,
                "adjust_lr_fn": "match_rms_adamw",
                "ns_steps": 4,
            },
        ),
    ],
)
def test_torch(ours, theirs, monkeypatch):
    """Without Nesterov momentum, for which torch lacks the bias correction."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    opt = eqopt.Muon(
        0.1,
        nesterov=False,
        weight_dimension_numbers=eqopt.MatrixDimensionNumbers(1, 0),
        **ours,
    )
    params = [jr.normal(jr.key(i), shape) for i, shape in enumerate([(3, 5), (6, 4)])]
    reference = [torch.nn.Parameter(torch.tensor(np.asarray(p))) for p in params]
    optimizer = torch.optim.Muon(reference, lr=0.1, nesterov=False, **theirs)
    state = opt.init(params)
    for i in range(8):
        grads = [jr.normal(jr.key(10 * i), p.shape) for p in params]
        params, state = opt.step(grads, state, params)
        for p, g in zip(reference, grads, strict=True):
            p.grad = torch.tensor(np.asarray(g))
        optimizer.step()
    for p, q in zip(params, reference, strict=True):
        np.testing.assert_allclose(p, q.detach().numpy(), rtol=1e-4, atol=1e-5)
