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
        for name in ("4 bits, signed", "4 bits, unsigned")
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


def test_book_of_torchao():
    """The other ones are our own."""
    pytest.importorskip("torch")
    utils = pytest.importorskip("torchao.optim.quant_utils")
    map, numbers, _ = BOOKS["4 bits, signed"]
    theirs = utils.create_dynamic_map(True, 3, 4)
    np.testing.assert_allclose(numbers, theirs, 1e-6, 0)
    codes = jnp.arange(len(numbers), dtype=jnp.uint8)
    np.testing.assert_allclose(map.decode(codes, jnp.float32), theirs, 1e-6, 0)


@CASES
def test_codes_of_torchao(name, what):
    torch = pytest.importorskip("torch")
    utils = pytest.importorskip("torchao.optim.quant_utils")
    _, numbers, _ = BOOKS[name]
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
    qmap = torch.tensor(numbers, dtype=torch.float32)
    theirs = utils.quantize_4bit_with_qmap(scaled, qmap).numpy()
    np.testing.assert_array_equal(codes_of(stored, 4), theirs)


def theirs_and_ours(bits, storage, qmap=None, steps=12):
    """The parameters of torchao's AdamW, as it is before they compile it, and of ours."""
    torch = pytest.importorskip("torch")
    adam = pytest.importorskip("torchao.optim.adam")
    states = pytest.importorskip(f"torchao.optim.subclass_{bits}bit")
    shape, size = (16, 256), {8: 256, 4: 128}[bits]
    stored = getattr(states, f"OptimState{bits}bit")
    moments = [stored.zeros(shape, signed, size) for signed in (True, False)]
    if qmap is not None:
        moments[1].qmap = torch.tensor(qmap).float()
    start = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    opt, lr = eqopt.AdamW(0.01, weight_decay=0.1), torch.tensor(0.01)
    opt = eqopt.StoreState(opt, storage) if storage else opt
    ours, theirs = jnp.asarray(start), torch.tensor(start)
    state, step = opt.init(ours), jax.jit(opt.step)
    for i in range(steps):
        g = np.random.default_rng(100 + i).normal(size=shape).astype(np.float32)
        ours, state = step(jnp.asarray(g), state, ours)
        count, betas = torch.tensor(float(i + 1)), (0.9, 0.999)
        settings = (None, lr, *betas, 0.1, 1e-8, True, False)
        adam.single_param_adam(theirs, torch.tensor(g), count, *moments, *settings)
        yield theirs.numpy(), np.asarray(ours)


def test_steps_of_torchao():
    """With our map for second moments."""
    qmap = BOOKS["4 bits, unsigned"].numbers
    for theirs, ours in theirs_and_ours(4, BlockwiseQuantized(4), qmap):
        # All codes are the same: a neighbour's would show in the fourth digit.
        np.testing.assert_allclose(ours, theirs, 0, 3e-6)


def test_8_bits_are_closer_to_float32_than_those_of_torchao():
    *_, (theirs, full) = theirs_and_ours(8, None)
    *_, (_, ours) = theirs_and_ours(8, BlockwiseQuantized())
    error = lambda x: np.sqrt(np.mean((x - full) ** 2))
    assert error(ours) < 0.9 * error(theirs) < 1e-3


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
