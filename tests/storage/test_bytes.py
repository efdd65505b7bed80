"""Bytes of a state, counted, and the temporary memory of a step. Both are exact."""

import jax
import jax.numpy as jnp
import pytest

import eqopt
from eqopt.storage import (
    BlockwiseQuantized,
    Cast,
    Float8,
    KahanSummation,
    MasterWeights,
    SplitMasterWeights,
    StochasticRounding,
)


pytestmark = pytest.mark.slow


def language_model(width=512, layers=12, words=16_000, dtype=jnp.float32):
    """The shapes of one: embeddings, matrices, norms and biases."""
    shape = lambda *shape: jax.ShapeDtypeStruct(shape, dtype)
    layer = {
        "attention": [shape(width, width)] * 4,
        "mlp": [shape(4 * width, width), shape(width, 4 * width)],
        "biases": [shape(4 * width), shape(width)],
        "norms": [shape(width)] * 4,
    }
    return {"embedding": shape(words, width), "layers": [layer] * layers}


def nbytes(tree):
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def count(params):
    return sum(x.size for x in jax.tree.leaves(params))


def per_parameter(opt, params):
    return nbytes(jax.eval_shape(opt.init, params)) / count(params)


MODEL = language_model()
ADAMW = eqopt.AdamW(1e-3)


@pytest.mark.parametrize(
    ("inner", "storage", "most"),
    [
        (ADAMW, BlockwiseQuantized(), 2.05),
        (ADAMW, BlockwiseQuantized(4), 1.1),
        (ADAMW, Float8(), 2.05),
        (ADAMW, Cast(), 4.01),
        (ADAMW, StochasticRounding(), 4.01),
        (eqopt.Lion(1e-3), BlockwiseQuantized(), 1.03),
        (eqopt.Muon(1e-3), BlockwiseQuantized(), 1.4),
    ],
    ids=lambda x: repr(x) if not isinstance(x, float) else "",
)
def test_state(inner, storage, most):
    assert 45e6 < count(MODEL) < 55e6
    plain = per_parameter(inner, MODEL)
    found = per_parameter(eqopt.StoreState(inner, storage), MODEL)
    assert found <= most < 0.55 * plain


@pytest.mark.parametrize(
    ("storage", "expected"),
    [
        (SplitMasterWeights(), 4),
        (SplitMasterWeights(8), 3),
        (KahanSummation(), 4),
        (StochasticRounding(), 2),
        (MasterWeights(), 6),
    ],
    ids=repr,
)
def test_parameters(storage, expected):
    """Those in the model, and what the state has of them."""
    model = language_model(dtype=jnp.bfloat16)
    opt = eqopt.StoreParams(eqopt.SignSGD(0.1), storage)
    found = (nbytes(model) + nbytes(jax.eval_shape(opt.init, model))) / count(model)
    assert expected <= found < expected + 0.001


BLOCKS, SPLIT = BlockwiseQuantized(), SplitMasterWeights()


def state(inner, storage=BLOCKS):
    return eqopt.StoreState(inner, storage)


def params(inner, storage=SPLIT):
    return eqopt.StoreParams(inner, storage)


F32, BF16 = jnp.float32, jnp.bfloat16

# What a step takes besides, as a multiple of the parameters' bytes, is at most this on a
# CPU, where XLA keeps the new slots of all leaves next to the old ones, and for some
# methods also slots in float32. For states on accelerators, see `tests/compiled`.
TEMPORARY = {
    "8 bits": (state(ADAMW), F32, 0.52),
    "4 bits": (state(ADAMW, BlockwiseQuantized(4)), F32, 0.28),
    "half, at random": (state(ADAMW, StochasticRounding()), F32, 0.76),
    # Those which compute slots late, or load one before any shared value.
    "ADOPT": (state(eqopt.ADOPT(1e-3)), F32, 1.27),
    "GPA": (state(eqopt.GPA(ADAMW)), F32, 1.58),
    # What is loaded for a sum.
    "DoG": (state(eqopt.DoG()), F32, 1.31),
    # Four slots.
    "COCOB": (state(eqopt.COCOB()), F32, 2.03),
    "split": (params(ADAMW), BF16, 3.12),
    "split, 8 bits": (params(ADAMW, SplitMasterWeights(8)), BF16, 2.27),
    "Kahan": (params(ADAMW, KahanSummation()), BF16, 2.01),
    "parameters at random": (params(ADAMW, StochasticRounding()), BF16, 0.01),
    "master weights": (params(ADAMW, MasterWeights()), BF16, 0.01),
    # Both parts of a parameter come from one evaluation.
    "schedule-free": (params(eqopt.ScheduleFreeAdamW(1e-3)), BF16, 3.32),
    "state of parameters": (state(params(ADAMW)), BF16, 4.15),
    "parameters of state": (params(state(ADAMW)), BF16, 4.15),
}


@pytest.mark.parametrize("name", TEMPORARY)
def test_temporary_memory(name):
    """The last blocks do not fill these arrays."""
    opt, dtype, most = TEMPORARY[name]
    given = [jax.ShapeDtypeStruct((1000, 1000), dtype)] * 10
    old = jax.eval_shape(opt.init, given)
    # Master weights alone do not read the parameters; the loss in a train step does.
    step = jax.jit(
        lambda p, s, g: opt.step(g, s, p), donate_argnums=(0, 1), keep_unused=True
    )
    memory = step.lower(given, old, given).compile().memory_analysis()
    assert memory is not None
    size = nbytes(given)
    assert memory.output_size_in_bytes - memory.alias_size_in_bytes < 0.01 * size
    assert memory.temp_size_in_bytes < most * size
