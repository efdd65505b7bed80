"""Parameters in two parts: bits that come back, and training that is that in float32."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt
from eqopt.storage import MasterWeights, Slot, SplitMasterWeights


def words(count=10**6):
    """Floats of all exponents and both signs, and where rounding does something else."""
    rng = np.random.default_rng(0)
    high = np.arange(2**16, dtype=np.uint32) << 16
    lows = [0, 1, 0x7F, 0x80, 0x7FFF, 0x8000, 0x8001, 0xFF7F, 0xFF80, 0xFFFF]
    edges = np.concatenate([high | np.uint32(low) for low in lows])
    random = rng.integers(0, 2**32, count, dtype=np.uint32)
    return np.concatenate([edges, random]).view(np.float32)


def hidden(bits, p=None):
    p = jnp.zeros((), jnp.bfloat16) if p is None else p
    return SplitMasterWeights(bits).hide(p, Slot(0))


def both(bits):
    """The visible part of a number, and the number joined again."""

    @jax.jit
    def run(x):
        seen, rest = hidden(bits).split(x, jnp.zeros_like(x, jnp.bfloat16))
        return seen, rest.join(seen)

    return run


def test_all_bits_come_back():
    x = words()
    seen, joined = map(np.asarray, both(16)(x))
    is_finite = np.isfinite(x)
    # Bits: to compare numbers, XLA and NumPy may take the smallest for zeros.
    np.testing.assert_array_equal(
        joined.view(np.uint32)[is_finite], x.view(np.uint32)[is_finite]
    )
    np.testing.assert_array_equal(joined[~is_finite], x[~is_finite])
    np.testing.assert_array_equal(np.float32(seen)[~is_finite], x[~is_finite])


def test_what_is_seen_is_nearest():
    x = words(10**5)
    x = x[np.isfinite(x)]
    seen, _ = both(16)(x)
    found, nearest = np.float64(seen), np.float64(x.astype(jnp.bfloat16))
    np.testing.assert_array_equal(np.isinf(found), np.isinf(nearest))
    is_finite = np.isfinite(nearest)
    error = np.abs(found - np.float64(x))[is_finite]
    # In a tie, it may be the other neighbour.
    np.testing.assert_array_equal(error, np.abs(nearest - np.float64(x))[is_finite])


def test_24_bits_come_back():
    x = words(10**5)
    seen, joined = both(8)(x)
    is_ordinary = np.isfinite(x) & (np.abs(x) >= np.finfo(np.float32).tiny)
    is_below = is_ordinary & (np.abs(x) < 3.4e38)
    wide = np.float64(x[is_below])
    # 15 binary digits behind the point, of which the last is rounded.
    error = np.abs(np.float64(joined)[is_below] - wide)
    assert (error <= 2.0**-16 * np.abs(wide)).all()
    bits = np.asarray(joined).view(np.uint32)[is_ordinary]
    assert (bits & 0xFF == 0).all()
    error = np.abs(np.float64(seen)[is_below] - wide)
    finite = np.isfinite(np.float64(seen)[is_below])
    assert (error <= (2.0**-8 + 2.0**-16) * np.abs(wide))[finite].all()
    is_odd = ~np.isfinite(x)
    np.testing.assert_array_equal(np.asarray(joined)[is_odd], x[is_odd])
    # What has 24 bits stays as it is.
    again = both(8)(joined)[1]
    np.testing.assert_array_equal(again, joined)


@pytest.mark.parametrize("bits", [16, 8])
def test_at_first_it_is_what_is_seen(bits):
    p = words(1000)
    p = jnp.asarray(p[np.abs(p) < 3e38], jnp.bfloat16)
    rest = hidden(bits, p)
    assert rest.bits.dtype.itemsize == bits // 8
    found = np.asarray(rest.join(p)).view(np.uint32)
    np.testing.assert_array_equal(found, np.uint32(np.asarray(p).view(np.uint16)) << 16)


SHAPES = {"matrix": (6, 5), "more": [(7,), ()]}
is_shape = lambda x: isinstance(x, tuple)


def tree_of(seed):
    rng = np.random.default_rng(seed)
    draw = lambda shape: jnp.asarray(rng.normal(size=shape), jnp.bfloat16)
    return jax.tree.map(draw, SHAPES, is_leaf=is_shape)


def in_float32(tree):
    return jax.tree.map(lambda x: x.astype(jnp.float32), tree)


def same_bits(x, y):
    for a, b in zip(*map(jax.tree.leaves, (x, y)), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


QUICK = {"AdamW split"}
OPTIMIZERS = {
    "AdamW": eqopt.AdamW(0.01, weight_decay=0.1),
    "Muon": eqopt.Muon(0.01, weight_decay=0.1),
    "clipped": eqopt.Chain(eqopt.ClipByGlobalNorm(0.5), eqopt.AdamW(0.01)),
}
STORAGES = {"split": SplitMasterWeights(), "master": MasterWeights()}


@pytest.mark.parametrize(
    ("name", "storage"),
    [
        pytest.param(
            name,
            storage,
            id=(id := f"{name} {storage}"),
            marks=[] if id in QUICK else [pytest.mark.slow],
        )
        for name in OPTIMIZERS
        for storage in STORAGES
    ],
)
def test_training_equals_float32_training(name, storage, all_optimizations):
    """XLA may fuse a product and a sum in one program and not in the other."""
    inner = OPTIMIZERS[name]
    opt = eqopt.StoreParams(inner, STORAGES[storage])
    params = tree_of(0)
    plain = in_float32(params)
    state, other = opt.init(params), inner.init(plain)
    same_bits(state.inner_state, other)
    step, plain_step = jax.jit(opt.step), jax.jit(inner.step)
    for i in range(20):
        grads = tree_of(1 + i)
        params, state = step(grads, state, params)
        plain, other = plain_step(in_float32(grads), other, plain)
    close = lambda x, y: np.testing.assert_allclose(x, y, 1e-6, 1e-7)
    jax.tree.map(close, opt.full_params(state, params), plain)
    jax.tree.map(close, state.inner_state, other)
    assert all(p.dtype == jnp.bfloat16 for p in jax.tree.leaves(params))
    for p, x in zip(*map(jax.tree.leaves, (params, plain)), strict=True):
        np.testing.assert_allclose(np.float32(p), x, 2.0**-8)


@pytest.mark.slow
def test_master_weights_of_float16():
    inner, params = eqopt.AdamW(0.01), jnp.linspace(-1, 1, 9, dtype=jnp.float16)
    opt, plain = eqopt.StoreParams(inner, MasterWeights()), in_float32(params)
    new, state = opt.step(params, opt.init(params), params)
    plain, _ = inner.step(plain, inner.init(plain), plain)
    same_bits(opt.full_params(state, new), plain)
    same_bits(new, plain.astype(jnp.float16))


def test_leaves_in_full_precision_stay():
    model = {"half": jnp.ones(3, jnp.bfloat16), "full": jnp.ones(3), "name": "x"}
    opt = eqopt.StoreParams(eqopt.SGD(0.1), SplitMasterWeights())
    state = opt.init(model)
    assert state.hidden["full"] is None and state.hidden["name"] is None
    grads = {"half": jnp.ones(3, jnp.bfloat16), "full": jnp.ones(3), "name": None}
    new, state = opt.step(grads, state, model)
    assert new["name"] == "x"
    full = opt.full_params(state, new)
    np.testing.assert_array_equal(full["half"], full["full"])
    assert full["name"] == "x" and full["half"].dtype == jnp.float32


@pytest.mark.parametrize("name", ["in a chain", "masked"])
@pytest.mark.costly
def test_hidden_parts_of_one_vector(name):
    """`Flatten` around it shows one vector, to which the hidden part belongs."""
    inner = eqopt.StoreParams(eqopt.AdamW(0.01), SplitMasterWeights())
    opt, expected = {
        "in a chain": (eqopt.Flatten(eqopt.Chain(eqopt.Clip(1.0), inner)), inner),
        "masked": (
            eqopt.Masked(eqopt.Flatten(inner), {"a": True, "b": False, "f": False}),
            eqopt.Masked(inner, {"a": True, "b": False, "f": False}),
        ),
    }[name]
    model = {"a": jnp.ones((2, 3), jnp.bfloat16), "b": jnp.ones(4, jnp.bfloat16)}
    model["f"] = jnp.tanh
    grads = eqx.filter(model, eqx.is_array)
    results = []
    for o in (opt, expected):
        params, state = model, o.init(model)
        for _ in range(3):
            params, state = o.step(grads, state, params)
        results.append((params, o.full_params(state, params)))
    (params, full), (plain, plain_full) = results
    same_bits(eqx.filter(params, eqx.is_array), eqx.filter(plain, eqx.is_array))
    assert full["f"] is jnp.tanh and full["a"].dtype == jnp.float32
    same_bits(eqx.filter(full, eqx.is_array), eqx.filter(plain_full, eqx.is_array))


def test_what_is_hidden_is_no_state():
    """Stored in 8 bits, master weights would be useless."""
    params = {"w": jnp.ones((64, 64), jnp.bfloat16)}
    masters = eqopt.StoreParams(eqopt.Adam(0.1), eqopt.storage.MasterWeights())
    opt = eqopt.StoreState(masters, eqopt.storage.BlockwiseQuantized())
    state = opt.init(params)
    assert state.inner_state.hidden["w"].weights.dtype == jnp.float32
    assert eqopt.tree.get(state, "mu")["w"].codes.dtype == jnp.uint8


def test_full_parameters_share_no_buffer_with_the_state():
    opt = eqopt.StoreParams(eqopt.SGD(0.1), MasterWeights())
    model = jnp.ones(3, jnp.bfloat16)
    state = opt.init(model)
    full = opt.full_params(state, model)
    own = [x.unsafe_buffer_pointer() for x in jax.tree.leaves(state)]
    assert all(x.unsafe_buffer_pointer() not in own for x in jax.tree.leaves(full))
