"""Codes and steps against what others have written."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqopt
from eqopt.storage import BlockwiseQuantized, KahanSummation

from .books import BOOKS
from .test_blocks import blocks, codes_of, kept


pytestmark = pytest.mark.slow

CASES = pytest.mark.parametrize(
    ("name", "what"),
    [
        (name, what)
        for name in BOOKS
        for what in [*blocks(False), "zeros", "many", "denormal"]
    ],
)


def block(name, what):
    extra = {
        "zeros": np.zeros(64),
        "many": np.random.default_rng(3).normal(size=128 * 64),
        "denormal": np.linspace(1, 9, 64) * 1e-40,
    }
    if what in extra:
        x = np.float32(extra[what])
        return np.abs(x) if "unsigned" in name else x
    return blocks("unsigned" in name)[what]


# That of 4 bits for second moments is our own.
@pytest.mark.parametrize("name", [name for name in BOOKS if name != "4 bits, unsigned"])
def test_books_of_torchao(name):
    pytest.importorskip("torch")
    utils = pytest.importorskip("torchao.optim.quant_utils")
    map, book = BOOKS[name]
    bits = int(name[0])
    theirs = utils.create_dynamic_map("unsigned" not in name, bits - 1, bits)
    np.testing.assert_allclose(book, theirs, 1e-6, 0)
    codes = jnp.arange(len(book), dtype=jnp.uint8)
    np.testing.assert_allclose(map.decode(codes, jnp.float32), theirs, 1e-6, 0)


@CASES
def test_codes_of_torchao(name, what):
    torch = pytest.importorskip("torch")
    utils = pytest.importorskip("torchao.optim.quant_utils")
    _, book = BOOKS[name]
    x = block(name, what)
    stored = kept(name, x)
    scaled, scales = utils.scale_tensor(torch.tensor(x), 64)
    # They take no scale below 1e-12.
    clipped = np.maximum(np.asarray(stored.scales), 1e-12)
    np.testing.assert_array_equal(clipped, scales.numpy())
    if np.abs(x).max() < 1e-12:
        scales = np.asarray(stored.scales)[:, None]
        y = x.reshape(-1, 64) / np.where(scales == 0, 1, scales)
        scaled = torch.tensor(y.reshape(x.shape))
    quantize = getattr(utils, f"quantize_{name[0]}bit_with_qmap")
    theirs = quantize(scaled, torch.tensor(book, dtype=torch.float32)).numpy()
    np.testing.assert_array_equal(codes_of(stored, int(name[0])), theirs)


@pytest.mark.parametrize("is_signed", [True, False])
def test_books_of_bitsandbytes(is_signed):
    """Not its codes: on a CPU, version 0.50 has approximate ones, and 0 is not 0."""
    functional = pytest.importorskip("bitsandbytes.functional")
    _, book = BOOKS["8 bits, " + ("signed" if is_signed else "unsigned")]
    theirs = functional.create_dynamic_map(signed=is_signed).numpy()
    np.testing.assert_allclose(book, theirs, 1e-6, 0)


@pytest.mark.parametrize(
    ("module", "name", "bits", "size"),
    [("subclass_8bit", "OptimState8bit", 8, 256), ("subclass_4bit", "", 4, 128)],
)
def test_steps_of_torchao(module, name, bits, size):
    """Their AdamW, as it is before they compile it."""
    torch = pytest.importorskip("torch")
    adam = pytest.importorskip("torchao.optim.adam")
    states = pytest.importorskip(f"torchao.optim.{module}")
    stored = getattr(states, name or "OptimState4bit")
    shape = (16, 256)
    moments = [stored.zeros(shape, signed, size) for signed in (True, False)]
    if bits == 4:  # with our map for second moments
        moments[1].qmap = torch.tensor(BOOKS["4 bits, unsigned"][1]).float()
    ours = theirs = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    theirs = torch.tensor(theirs)
    opt = eqopt.StoreState(
        eqopt.AdamW(0.01, weight_decay=0.1), BlockwiseQuantized(bits)
    )
    ours, step = jnp.asarray(ours), jax.jit(opt.step)
    state = opt.init(ours)
    lr = torch.tensor(0.01)
    for i in range(12):
        g = np.random.default_rng(100 + i).normal(size=shape).astype(np.float32)
        ours, state = step(jnp.asarray(g), state, ours)
        adam.single_param_adam(
            theirs,
            torch.tensor(g),
            torch.tensor(float(i + 1)),
            *moments,
            None,
            lr,
            0.9,
            0.999,
            0.1,
            1e-8,
            True,
            False,
        )
        # All codes are the same: a neighbour's would show in the fourth digit.
        np.testing.assert_allclose(ours, theirs.numpy(), 0, 3e-6)


def test_kahan_of_optimi():
    """Steps too small for bfloat16: both follow the sum, ours at least as closely."""
    torch = pytest.importorskip("torch")
    optimi = pytest.importorskip("optimi")
    start = np.linspace(0.5, 2, 64, dtype=np.float32)
    opt = eqopt.StoreParams(eqopt.SGD(1e-3), KahanSummation())
    ours = jnp.asarray(start, jnp.bfloat16)
    state, step = opt.init(ours), jax.jit(opt.step)
    theirs = torch.nn.Parameter(torch.tensor(start, dtype=torch.bfloat16))
    optimizer = optimi.SGD([theirs], 1e-3, kahan_sum=True)
    exact = np.float64(ours)
    rng = np.random.default_rng(0)
    for _ in range(300):
        g = jnp.asarray(rng.uniform(0.2, 1, 64), jnp.bfloat16)
        ours, state = step(g, state, ours)
        theirs.grad = torch.tensor(np.float32(g), dtype=torch.bfloat16)
        optimizer.step()
        exact -= 1e-3 * np.float64(g)
    theirs = theirs.detach().float().numpy()
    moved = np.abs(np.float64(start) - exact).mean()
    error = [np.abs(np.float64(x) - exact).mean() for x in (ours, theirs)]
    assert error[1] < 0.01 * moved and error[0] <= 1.01 * error[1]
    full = np.abs(np.float64(opt.full_params(state, ours)) - exact).mean()
    assert full < 0.05 * error[0]
