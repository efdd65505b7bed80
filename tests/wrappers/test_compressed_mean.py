"""Compressed means: nothing is lost, by-hand values, and what is sent."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.fft
from benchmarks.scaling.collectives import collectives
from jax.sharding import AxisType, PartitionSpec as P

import eqopt
from eqopt import compression

from ..interpreter import interpreted


WORKERS = 4
COMPRESSORS = {
    "PowerSGD": compression.PowerSGD(2),
    "TopK": compression.TopK(0.1),
    "DCTTopK": compression.DCTTopK(3, 8),
    "Int8": compression.Int8Blocks(32),
    "Float8": compression.Float8Blocks(32),
    "Sign": compression.Sign(32),
}
SHAPES = {"matrix": (24, 18), "vector": (13,), "scalar": ()}
PARAMS = {name: jnp.zeros(shape) for name, shape in SHAPES.items()}
GRADS = [
    {
        name: jnp.asarray(np.random.default_rng([seed, i]).normal(size=(WORKERS, *s)))
        for i, (name, s) in enumerate(SHAPES.items())
    }
    for seed in range(3)
]
# The updates are the means.
MEAN = eqopt.Identity()


def mapped(opt):
    axes = eqopt.CompressedMeanState.prefix(0, None)
    return jax.vmap(opt.update, (0, axes), (None, axes), axis_name="data")


def start(opt, params):
    state = opt.init(params)
    own = jax.tree.map(lambda x: jnp.stack([x] * WORKERS), state.error)
    return eqx.tree_at(lambda s: s.error, state, own)


def taken(compressor, grads=GRADS, decay=1.0, dtype=jnp.float32):
    """The means of all steps, and the last state."""
    cast = lambda tree: jax.tree.map(lambda x: x.astype(dtype), tree)
    opt = eqopt.CompressedMean(MEAN, "data", compressor, decay)
    state, step = start(opt, cast(PARAMS)), interpreted(mapped(opt))
    means = []
    for one in grads:
        mean, state = step(cast(one), state)
        means.append(mean)
    return means, state


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, jnp.float32) for name in COMPRESSORS), ("TopK", jnp.bfloat16)],
)
@pytest.mark.costly
def test_nothing_is_lost(name, dtype):
    """All means and the mean of the errors are the sum of the mean gradients."""
    means, state = taken(COMPRESSORS[name], dtype=dtype)
    for key in SHAPES:
        given = sum(np.asarray(g[key].astype(dtype), np.float64) for g in GRADS)
        sent = sum(np.asarray(mean[key], np.float64) for mean in means)
        kept = np.mean(np.asarray(state.error[key], np.float64), axis=0)
        np.testing.assert_allclose(sent + kept, given.mean(axis=0), atol=2e-5)
        assert means[-1][key].dtype == dtype
        assert state.error[key].dtype == jnp.float32


def test_power_sgd_by_hand():
    """One step of a power iteration with the mean matrix."""
    [mean], state = taken(compression.PowerSGD(2), GRADS[:1])
    q = eqopt.CompressedMean(MEAN, None, compression.PowerSGD(2)).init(PARAMS).memory
    g = np.asarray(GRADS[0]["matrix"]).mean(axis=0)
    p, _ = np.linalg.qr(g @ np.asarray(q["matrix"]))
    np.testing.assert_allclose(mean["matrix"], p @ p.T @ g, atol=1e-5)
    np.testing.assert_allclose(state.memory["matrix"], g.T @ p, atol=1e-5)
    np.testing.assert_allclose(
        mean["vector"], GRADS[0]["vector"].mean(axis=0), atol=1e-6
    )
    assert state.memory["vector"] is None


@pytest.mark.slow
def test_top_k_by_hand():
    [mean], state = taken(compression.TopK(0.2), GRADS[:1])
    g = np.asarray(GRADS[0]["vector"])
    kept = np.where(np.abs(g) >= np.sort(np.abs(g), axis=1)[:, -3:-2], g, 0)
    np.testing.assert_allclose(mean["vector"], kept.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(state.error["vector"], g - kept, rtol=1e-6)


@pytest.mark.slow
def test_dct_by_hand():
    """A chunk of 8 x 6 of the matrix, with SciPy."""
    [mean], _ = taken(compression.DCTTopK(3, 8), GRADS[:1])
    sent = []
    for g in np.asarray(GRADS[0]["matrix"])[:, :8, :6]:
        c = scipy.fft.dctn(g, norm="ortho")
        c[np.abs(c) < np.sort(np.abs(c).ravel())[-3]] = 0
        sent.append(scipy.fft.idctn(c, norm="ortho"))
    np.testing.assert_allclose(mean["matrix"][:8, :6], np.mean(sent, axis=0), atol=1e-5)


@pytest.mark.parametrize("name", COMPRESSORS)
@pytest.mark.costly
def test_empty_arrays_pass(name):
    params = {"empty": jnp.ones((0, 3)), "vector": jnp.ones(3)}
    compressor = COMPRESSORS[name]
    outer = eqopt.DiLoCo(eqopt.SGD(0.1), None, 1, compressor=compressor)
    for opt in (eqopt.CompressedMean(MEAN, None, compressor), outer):
        updates, state = opt.update(params, opt.init(params), params)
        assert updates["empty"].shape == state.error["empty"].shape == (0, 3)
        assert updates["vector"].any()


@pytest.mark.parametrize(
    ("name", "relative"), [("Int8", 1 / 127), ("Float8", 1 / 16), ("Sign", 3.0)]
)
@pytest.mark.costly
def test_blocks_are_close(name, relative):
    """Each stage rounds to half a unit of the largest number."""
    [mean], _ = taken(COMPRESSORS[name], GRADS[:1])
    for key, g in GRADS[0].items():
        error = np.max(np.abs(mean[key] - g.mean(axis=0)))
        assert error <= relative * np.max(np.abs(g))


@pytest.mark.parametrize("shape", [(), (13,), (33,), (70,)])
@pytest.mark.costly
def test_equal_numbers_are_sent_exactly_by_their_signs(shape):
    """The scale is the mean of a block without its padding, in both stages."""
    ones = jnp.ones((WORKERS, *shape))
    for size in (16, 1024):
        compressor = compression.Sign(size)
        alone = eqopt.CompressedMean(MEAN, None, compressor)
        together = eqopt.CompressedMean(MEAN, "data", compressor)
        for mean, state in (
            alone.update(ones[0], alone.init(ones[0])),
            mapped(together)(ones, start(together, ones[0])),
        ):
            np.testing.assert_array_equal(mean, ones[0])
            np.testing.assert_array_equal(state.error, 0 * state.error)


@pytest.mark.slow
def test_decay():
    means, _ = taken(compression.TopK(0.1), decay=0.5)
    again, state = taken(compression.TopK(0.1), GRADS[:1])
    grads = 0.5 * state.error["vector"] + GRADS[1]["vector"]
    g = np.asarray(grads)
    kept = np.where(np.abs(g) == np.abs(g).max(axis=1, keepdims=True), g, 0)
    np.testing.assert_allclose(means[1]["vector"], kept.mean(axis=0), rtol=1e-5)
    np.testing.assert_array_equal(means[0]["vector"], again[0]["vector"])


SIZE = 32, 24
BLOCKS = SIZE[0] * SIZE[1] // 32


def sent_bytes(kind, size):
    """What one of the workers sends for a result of this size."""
    return {"all-reduce": 2, "all-gather": 1, "all-to-all": 1}[kind] * (
        (WORKERS - 1) / WORKERS * size
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("PowerSGD", {"all-reduce": 4 * 2 * (SIZE[0] + SIZE[1])}),
        ("TopK", {"all-gather": WORKERS * (4 + 2) * 77}),
        ("DCTTopK", {"all-gather": WORKERS * (4 + 2) * 12 * 3}),
        *(
            (name, dict.fromkeys(("all-to-all", "all-gather"), size + 4 * BLOCKS))
            for name, size in [
                ("Int8", SIZE[0] * SIZE[1]),
                ("Float8", SIZE[0] * SIZE[1]),
                ("Sign", SIZE[0] * SIZE[1] // 8),
            ]
        ),
    ],
)
@pytest.mark.costly
def test_devices_send_what_the_formula_says(name, expected):
    """And get the same as with `vmap`, equal on all devices, as JAX checks."""
    opt = eqopt.CompressedMean(eqopt.SGD(0.1), "data", COMPRESSORS[name])
    kind = (AxisType.Auto,)
    mesh = jax.make_mesh((WORKERS,), ("data",), kind, devices=jax.devices()[:WORKERS])
    specs = eqopt.CompressedMeanState.prefix(P("data"), P())

    def work(grads, state):
        state = eqx.tree_at(lambda s: s.error, state, state.error[0])
        updates, state = opt.update(grads[0], state)
        return updates, eqx.tree_at(lambda s: s.error, state, state.error[None])

    mapped_work = jax.shard_map(
        work, mesh=mesh, in_specs=(P("data"), specs), out_specs=(P(), specs)
    )
    grads = jnp.asarray(np.random.default_rng(0).normal(size=(WORKERS, *SIZE)))
    state = start(opt, jnp.zeros(SIZE))
    program = jax.jit(mapped_work).lower(grads, state).compile()
    found = collectives(program.as_text())
    sent = dict.fromkeys(expected, 0.0)
    for one in found:
        sent[one.kind] += one.sent
    assert sent == {k: sent_bytes(k, size) for k, size in expected.items()}
    updates, _ = program(grads, state)
    same, _ = interpreted(mapped(opt))(grads, state)
    np.testing.assert_allclose(updates, same, rtol=1e-4, atol=1e-5)


def test_the_axis_must_be_mapped():
    opt = eqopt.CompressedMean(MEAN, "data", compression.Sign())
    state = opt.init(PARAMS)
    with pytest.raises(ValueError, match="no such axis is mapped here"):
        opt.update(PARAMS, state)


@pytest.mark.parametrize("name", ["Int8", "Float8"])
@pytest.mark.costly
def test_nan_stays_in_large_arrays(name):
    """On a CPU, XLA computes the maxima of large arrays in another way."""
    grads = jnp.ones(4099).at[1000].set(jnp.nan)  # in block number 31
    opt = eqopt.CompressedMean(MEAN, None, COMPRESSORS[name])
    updates, _ = opt.update(grads, opt.init(grads))
    expected = np.arange(4099) // 32 == 31
    np.testing.assert_array_equal(np.isnan(updates), expected)
