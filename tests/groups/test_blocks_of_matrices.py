"""Blocks within a matrix, such as heads: each trains like a matrix in its own leaf."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt
from eqopt import groups

from ..interpreter import interpreted


Numbers = eqopt.MatrixDimensionNumbers
WHOLE = Numbers(-1, -2)
EQUAL, SIZES = (4, 4, 4), (6, 4, 2)
draw = np.random.default_rng(0).normal
PARAMS, *GRADS = (jnp.asarray(draw(size=(12, 5)), jnp.float32) for _ in range(3))

OPTIMIZERS = {
    "Muon": lambda n: eqopt.Muon(0.02, weight_dimension_numbers=n),
    "SOAP": lambda n: eqopt.SOAP(0.02, skip_first=False, weight_dimension_numbers=n),
    "KeepNorm": lambda n: eqopt.Hyperball(
        eqopt.ScaleByAdam(), 0.02, radius="initial", weight_dimension_numbers=n
    ),
    "APOLLO": lambda n: eqopt.APOLLO(0.02, 2, proj="svd", weight_dimension_numbers=n),
}


def trained(opt, params, grads):
    state, step = opt.init(params), interpreted(opt.step)
    for g in grads:
        params, state = step(g, state, params)
    return params


def cut(x, sizes):
    return jnp.split(x, np.cumsum(sizes)[:-1].tolist())


@pytest.mark.parametrize("sizes", [EQUAL, SIZES], ids=["equal", "sizes"])
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.costly
def test_blocks_train_like_separate_leaves(name, sizes):
    """Equal blocks of Muon to the last bit, and all others to rounding."""
    make, rows = OPTIMIZERS[name], 3 if sizes == EQUAL else sizes
    apart = trained(make(WHOLE), cut(PARAMS, sizes), [cut(g, sizes) for g in GRADS])
    apart = jnp.concatenate(apart)
    fused = trained(make(Numbers(-1, -2, output_blocks=rows)), PARAMS, GRADS)
    if name == "Muon" and sizes == EQUAL:
        np.testing.assert_array_equal(fused, apart)
    np.testing.assert_allclose(fused, apart, rtol=1e-4, atol=1e-6)
    if name in ("Muon", "KeepNorm"):  # the same as blocks of inputs, inputs first
        numbers = Numbers(0, 1, output_blocks=rows)
        fused = trained(make(numbers), PARAMS.T, [g.T for g in GRADS])
        np.testing.assert_allclose(fused.T, apart, rtol=1e-4, atol=1e-6)


def heads_of_mla(x):
    """For each head, the rows of keys without positions, then of values."""
    return cut(x, HEADS * (6, 4))


def interleaved(x):
    """Rows of `w1` and `w3` in turn: an array (hidden, 2, inputs)."""
    return [x[:, 0], x[:, 1]]


HEADS = 3
LAYOUTS = {
    "nope and v": (
        (30, 5),
        Numbers(-1, -2, output_blocks=HEADS * (6, 4)),
        heads_of_mla,
    ),
    "w1 and w3": ((8, 2, 5), Numbers(-1, -3), interleaved),
    "experts, interleaved": (
        (3, 8, 2, 5),
        Numbers(-1, -3),
        lambda x: [part for expert in x for part in interleaved(expert)],
    ),
    "experts, one after the other": (
        (3, 2, 8, 5),
        Numbers(-1, -2),
        lambda x: [*x.reshape(6, 8, 5)],
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.costly
def test_fused_weights_of_large_models(layout):
    """All parts of the fused weight train like independent matrices, reassembled."""
    shape, numbers, parts = LAYOUTS[layout]
    params, *grads = (jnp.asarray(x, jnp.float32) for x in draw(size=(3, *shape)))
    make = lambda n: eqopt.Muon(0.02, weight_decay=0.1, weight_dimension_numbers=n)
    fused = trained(make(numbers), params, grads)
    apart = trained(make(WHOLE), parts(params), [*map(parts, grads)])
    for found, expected in zip(parts(fused), apart, strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


class MeansState(eqx.Module):
    means: Any


@eqopt.equation
def center(g, means):
    means = 0.5 * means + 0.5 * jnp.mean(g, 1, keepdims=True)
    return g - means, means


class Centered(eqopt.AbstractMatrixwise):
    """Its state has a number for each row of a matrix."""

    block_size: int | None = None
    weight_dimension_numbers: Any = None

    def init(self, params):
        return MeansState(self.for_matrices(params, lambda x: x[:, :1]))

    def matrixwise(self, state, params=None, **extra):
        return eqopt.Leafwise(center, state)


@pytest.mark.parametrize(
    ("shape", "numbers", "of_means"),
    [
        ((4, 6), WHOLE, (4, 3)),
        ((2, 4, 6), WHOLE, (2, 4, 3)),
        ((4, 2, 3), Numbers((-2, -1), 0), (4, 3, 1)),
        ((4, 6), Numbers(-1, -2, output_blocks=2), (4, 3)),
    ],
)
@pytest.mark.costly
def test_a_number_for_each_row_of_each_block(shape, numbers, of_means):
    """Along its inputs, the slot of a leaf has as many as there are blocks."""
    opt = Centered(2, numbers)
    grads = jnp.asarray(draw(size=(2, *shape)), jnp.float32)
    state = opt.init(grads[0])
    assert state.means.shape == of_means
    _, state = jax.jit(opt.update)(grads[0], state)
    updates, _ = jax.jit(opt.update)(grads[1], state)
    apart = np.asarray(grads).reshape(2, -1, 2)
    means = 0.5 * (0.5 * apart[0] + apart[1]).mean(-1, keepdims=True)
    np.testing.assert_allclose(updates, (apart[1] - means).reshape(shape), 1e-5)


def test_by_hand():
    """The update of a block with one row is the row, divided by its norm."""
    opt = eqopt.Orthogonalize(
        coefficients="cans",
        scale="shape",
        weight_dimension_numbers=Numbers(-1, -2, output_blocks=2),
    )
    g = jnp.array([[3.0, 4.0], [0.0, -2.0]])
    u, _ = opt.update(g, opt.init(g), g)
    np.testing.assert_allclose(u, [[0.6, 0.8], [0, -1]], rtol=2e-3, atol=1e-6)
    keep = eqopt.KeepNorm(
        2.0, weight_dimension_numbers=Numbers(-1, -2, output_blocks=2)
    )
    u, _ = keep.update(g, keep.init(g), jnp.ones((2, 2)))
    new = np.asarray(u) + 1
    np.testing.assert_allclose(np.linalg.norm(new, axis=1), 2, rtol=1e-6)
    np.testing.assert_allclose(new[0], np.array([4, 5]) * 2 / 41**0.5, rtol=1e-6)


def test_routes_and_rules():
    heads = groups.matrices(groups.path("qkv"), -1, -2, output_blocks=SIZES)
    opt = eqopt.Muon(0.1, weight_dimension_numbers=heads)
    (route,) = groups.routes(opt, {"qkv": PARAMS})
    assert route.matrices == ((1, 6, 5), (1, 4, 5), (1, 2, 5))
    np.testing.assert_allclose(route.factor[[0, 6, 11], 0], [1.2**0.5, 1, 1])
    assert "1 of 6 x 5 + 1 of 4 x 5 + 1 of 2 x 5" in str(route)
    stack = Numbers(-1, -2, output_blocks=3)
    opt = eqopt.ScaleBySOAP(weight_dimension_numbers=stack)
    (route,) = groups.routes(opt, jnp.ones((7, 12, 5)))
    assert route.matrices == ((21, 4, 5),) and route.outputs == (1,)


@pytest.mark.slow
def test_adam_mini_has_a_moment_for_each_block():
    """The same numbers say which heads there are."""
    nu = lambda blocks, x: eqopt.tree.get(
        eqopt.AdamMini(1, block_axes=blocks).init(x), "nu"
    )
    assert nu(Numbers(-1, -2, output_blocks=3), PARAMS).shape == (3, 1)
    assert nu(Numbers(-1, -2, reduction_blocks=5), PARAMS).shape == (12, 5)
    heads = groups.matrices(groups.everything, -1, (-3, -2), output_blocks=2)
    assert nu(heads, jnp.ones((7, 2, 3, 4))).shape == (7, 2, 1, 1)
    both = eqopt.AdamMini(0.1, block_axes=Numbers(-1, -2, output_blocks=3))
    apart = eqopt.AdamMini(0.1, block_axes=groups.BlockAxes())
    fused = trained(both, PARAMS, GRADS)
    separate = trained(apart, cut(PARAMS, EQUAL), [cut(g, EQUAL) for g in GRADS])
    np.testing.assert_allclose(fused, jnp.concatenate(separate), rtol=1e-5)


def of(cls, numbers, **options):
    return lambda: cls(0.1, weight_dimension_numbers=numbers, **options).init(
        {"w": PARAMS}
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            of(eqopt.Muon, Numbers(-1, -2, output_blocks=5)),
            r"`\['w'\]`.*must divide the size 12",
        ),
        (
            of(eqopt.Muon, Numbers(-1, -2, (2, 2))),
            r"shape \(12, 5\). The blocks must add up to the size 5",
        ),
        (
            of(eqopt.GaLore, Numbers(-1, -2, 1, 3)),
            r"does not fit `\['w'\]`.*The matrix must be whole. Omit",
        ),
        (
            lambda: eqopt.AdamMini(1, block_axes=Numbers(-1, -2, 1, SIZES)).init(
                [PARAMS]
            ),
            r"blocks of several sizes for `\[0\]`, but `block_axes` needs equal blocks",
        ),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()
