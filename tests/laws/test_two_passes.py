"""One pass over a leaf measures its blocks, and a second one stores them.

On a GPU, arrays have an axis of blocks meanwhile, and on a TPU the order of its tiles.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import jax.random as jr
import pytest
from jax.sharding import AbstractMesh, AxisType

import eqopt
from eqopt import _platforms

from ..interpreter import interpreted, on_an_accelerator
from ..methods import METHODS
from .registry import KINDS, PARTS, law
from .subjects import assert_equal, grads_of, params_of
from .test_laws import OWN_SHAPES


STORAGES = {
    "8 bits": eqopt.storage.BlockwiseQuantized(block_size=4),
    "4 bits": eqopt.storage.BlockwiseQuantized(4, 4),
    "float8": eqopt.storage.Float8(4),
}
ROWS = {row.name for method in METHODS.values() for row in method.laws} & PARTS


@pytest.fixture(autouse=True)
def no_leaf_is_small(monkeypatch):
    monkeypatch.setattr(_platforms, "_LARGE", 0)
    monkeypatch.setattr(_platforms, "_LARGE_ON_TPU", 0)


def stored(opt, storage=STORAGES["8 bits"]):
    return eqopt.StoreState(opt, storage, eqopt.groups.everything)


def train(opt, platform, params):
    # A new function, so that it is traced again.
    step = interpreted(lambda opt, *rest: opt.step(*rest))
    state = opt.init(params)
    with on_an_accelerator(platform):
        for i in range(3):
            params, state = step(opt, grads_of(params, i), state, params)
    return params, state


@law({"ScaleByAdam"}, ROWS)
def test_a_second_pass_changes_nothing(row):
    opt, params = stored(row()), params_of()
    assert_equal(train(opt, "cuda", params), train(opt, "tpu", params))


@law({"ScaleByAdam"}, ROWS & (KINDS | OWN_SHAPES))
def test_a_second_pass_over_pairs_of_codes_changes_nothing(row):
    """The storage pairs them, so one row of each kind is enough, and all with slots of
    other shapes. Rows of an odd number of codes would take one pass."""
    twice = lambda x: jnp.concatenate([x, -x], -1) if x.ndim else x
    opt, params = stored(row(), STORAGES["4 bits"]), jax.tree.map(twice, params_of())
    assert_equal(train(opt, "cuda", params), train(opt, "tpu", params))


# The size of a block, and the shape of a leaf. A tile of a TPU has 128 columns.
FITS = {
    "a block of a tile": (128, (128, 256)),
    "a block of two tiles": (256, (2, 128, 512)),
}
FITS_NOT = {
    "rows that 16 devices cannot share": (128, (192, 256)),
    "columns of no tile": (64, (128, 192)),
    # Four devices can share four blocks, but not six tiles.
    "blocks of one and a half": (192, (128, 768)),
    "one axis": (128, (2**15,)),
    "no axis": (128, ()),
}


@pytest.mark.parametrize("size", FITS)
@pytest.mark.parametrize("name", STORAGES)
@pytest.mark.costly
def test_tiles_change_nothing(name, size):
    size, shape = FITS[size]
    storage = dataclasses.replace(STORAGES[name], block_size=size)
    params = jr.normal(jr.key(0), shape) * jr.exponential(jr.key(1), shape) ** 9
    for opt, moments in (eqopt.AdamW(0.1), 2), (eqopt.Lion(0.1), 1):
        # Codes of 4 bits are taken apart in each pass, and joined in the second one.
        others = 3 * moments if name == "4 bits" else 0
        assert barriers(stored(opt, storage), "tpu", shape) == 1 + others
        expected = train(stored(opt, storage), "cpu", params)
        assert_equal(train(stored(opt, storage), "tpu", params), expected)


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
@pytest.mark.parametrize(
    "other",
    [
        eqopt.storage.StochasticRounding(),
        eqopt.storage.BlockwiseQuantized(4, 128),
        eqopt.storage.Cast(jnp.bfloat16),
    ],
    ids=lambda x: type(x).__name__,
)
@pytest.mark.costly
def test_beside_another_storage(platform, other):
    """One kernel has both. Random rounding depends on the position of an element."""
    opt = eqopt.Chain(
        stored(eqopt.ScaleByAdam(), eqopt.storage.BlockwiseQuantized(block_size=128)),
        stored(eqopt.Trace(0.9), other),
        eqopt.ScaleByLearningRate(0.1),
    )
    params = jr.normal(jr.key(0), (128, 256))
    assert_equal(train(opt, platform, params), train(opt, "cpu", params))


def by_width(g, p):
    return g / math.sqrt(g.shape[-1])


def by_column(g, p):
    return g * jnp.arange(g.shape[-1], dtype=g.dtype)[None]


def turned(g, p):
    return g.T if g.ndim == 2 and len({*g.shape}) == 1 else g


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
@pytest.mark.parametrize(
    ("part", "shape"),
    [
        (eqopt.Centralize(), (2**10,)),
        (eqopt.AddNoise(0.1, 0.1, 0), (128, 256)),
        *(
            (eqopt.StatelessWithTreeMap(fn), (256, 256))
            for fn in (by_width, by_column, turned)
        ),
    ],
)
@pytest.mark.costly
def test_equations_that_look_at_shapes(part, shape, platform):
    """They see each leaf as it is, without an axis of blocks and not in tiles."""
    opt = eqopt.Chain(part, eqopt.SGD(0.1, 0.9))
    opt = stored(opt, eqopt.storage.BlockwiseQuantized(block_size=128))
    params = jr.normal(jr.key(0), shape)
    assert_equal(train(opt, platform, params), train(opt, "cpu", params))


@pytest.mark.parametrize("size", FITS_NOT)
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.costly
def test_what_does_not_fit_in_tiles(bits, size):
    size, shape = FITS_NOT[size]
    opt = stored(eqopt.AdamW(0.1), eqopt.storage.BlockwiseQuantized(bits, size))
    assert barriers(opt, "tpu", shape) == 0


@pytest.mark.parametrize(
    ("devices", "kind", "is_in_tiles"),
    [
        (2, AxisType.Auto, True),
        (32, AxisType.Auto, False),
        (2, AxisType.Explicit, False),
    ],
)
@pytest.mark.costly
def test_tiles_on_a_mesh(devices, kind, is_in_tiles):
    """Of 32 devices, each would have half of a tile. Explicit axes stay as they are."""
    opt = stored(eqopt.AdamW(0.1), eqopt.storage.BlockwiseQuantized(block_size=128))
    params = jnp.ones((128, 128))
    state = opt.init(params)
    with jax.sharding.use_abstract_mesh(AbstractMesh((devices,), ("x",), (kind,))):
        program = str(jax.make_jaxpr(opt.step)(params, state, params))
    assert program.count("optimization_barrier") == 1 + is_in_tiles  # 1 for a GPU


def barriers(opt, platform="cuda", shape=(8, 8)):
    params = jnp.ones(shape)
    step = jax.jit(opt.step).trace(params, opt.init(params), params)
    text = step.lower(lowering_platforms=(platform,)).as_text()
    return text.count("stablehlo.optimization_barrier")


@pytest.mark.slow
def test_which_steps_take_two_passes():
    adam, muon = eqopt.Adam(0.1), eqopt.Muon(0.1)
    assert barriers(stored(adam)) == barriers(stored(adam, STORAGES["float8"])) == 1
    assert barriers(stored(adam), "tpu") == 0
    in_4_bits = stored(adam, STORAGES["4 bits"])
    assert barriers(in_4_bits) == barriers(in_4_bits, shape=(3, 5, 6)) == 1
    # The last of an odd number of codes has a byte for itself, so there is one pass.
    assert barriers(in_4_bits, shape=(8, 7)) == 0
    assert barriers(stored(muon)) == 0  # products are not worth computing twice


def test_small_leaves_take_one_pass(monkeypatch):
    monkeypatch.setattr(_platforms, "_LARGE", 70)
    opt = stored(eqopt.Adam(0.1))
    assert [barriers(opt, shape=shape) for shape in ((3, 23), (2, 35))] == [0, 1]
