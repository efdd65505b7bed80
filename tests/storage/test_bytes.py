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


SLOW = pytest.mark.slow


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


# Of the leaves that are loaded for a sum, JAX 0.10 keeps two more at a time.
AT_ONCE = 0.2 if jax.__version__.startswith("0.10.") else 0


@pytest.mark.parametrize(
    ("inner", "storage", "most"),
    [
        (ADAMW, BlockwiseQuantized(), 2.05),
        (ADAMW, BlockwiseQuantized(4), 1.1),
        *(
            pytest.param(*case, marks=SLOW)
            for case in [
                (ADAMW, Float8(), 2.05),
                (ADAMW, Cast(), 4.01),
                (ADAMW, StochasticRounding(), 4.01),
                (eqopt.Lion(1e-3), BlockwiseQuantized(), 1.03),
                (eqopt.Muon(1e-3), BlockwiseQuantized(), 1.4),
            ]
        ),
    ],
    ids=lambda x: repr(x) if not isinstance(x, float) else "",
)
@pytest.mark.slow
def test_state(inner, storage, most):
    assert 45e6 < count(MODEL) < 55e6
    plain = per_parameter(inner, MODEL)
    found = per_parameter(eqopt.StoreState(inner, storage), MODEL)
    assert found <= most < 0.55 * plain


@pytest.mark.parametrize(
    ("storage", "expected"),
    [
        (SplitMasterWeights(), 4),
        *(
            pytest.param(*case, marks=SLOW)
            for case in [
                (SplitMasterWeights(8), 3),
                (KahanSummation(), 4),
                (StochasticRounding(), 2),
                (MasterWeights(), 6),
            ]
        ),
    ],
    ids=repr,
)
@pytest.mark.slow
def test_parameters(storage, expected):
    """Those in the model, and what the state has of them."""
    model = language_model(dtype=jnp.bfloat16)
    opt = eqopt.StoreParams(eqopt.SignSGD(0.1), storage)
    found = (nbytes(model) + nbytes(jax.eval_shape(opt.init, model))) / count(model)
    assert expected <= found < expected + 0.001


@pytest.mark.slow
def test_all_of_it_in_six_bytes():
    """A bfloat16 model, its other half, and two moments of 8 bits: 6 bytes, not 16."""
    model = language_model(dtype=jnp.bfloat16)
    opt = eqopt.StoreParams(
        eqopt.StoreState(ADAMW, BlockwiseQuantized()), SplitMasterWeights()
    )
    found = (nbytes(model) + nbytes(jax.eval_shape(opt.init, model))) / count(model)
    assert found < 6.05


def temporary(opt, dtype=jnp.float32, shape=(1000, 1000), leaves=10, gradients=None):
    """What a step takes besides, as a fraction of the parameters' bytes."""
    params = [jax.ShapeDtypeStruct(shape, dtype)] * leaves
    grads = [jax.ShapeDtypeStruct(shape, gradients or dtype)] * leaves
    state = jax.eval_shape(opt.init, params)
    step = jax.jit(lambda p, s, g: opt.step(g, s, p), donate_argnums=(0, 1))
    memory = step.lower(params, state, grads).compile().memory_analysis()
    assert memory is not None
    size = nbytes(params)
    assert memory.output_size_in_bytes - memory.alias_size_in_bytes < 0.01 * size
    return memory.temp_size_in_bytes / size


# Of the leaves that are loaded for a sum, JAX 0.10 keeps two more at a time.
AT_ONCE = 0.2 if jax.__version__.startswith("0.10.") else 0


@pytest.mark.parametrize(
    ("inner", "storage", "most"),
    [
        pytest.param(*case, id=f"{type(case[0]).__name__}-{case[1]}", marks=marks)
        for marks, cases in [
            ((), [(ADAMW, BlockwiseQuantized(), 0.23)]),
            (
                SLOW,
                [
                    (ADAMW, BlockwiseQuantized(4), 0.23),
                    (ADAMW, Float8(), 0.23),
                    (ADAMW, Cast(), 0.26),
                    (ADAMW, StochasticRounding(), 0.26),
                    (eqopt.Lion(1e-3), BlockwiseQuantized(), 0.23),
                    (eqopt.Lion(1e-3), Float8(), 0.23),
                    (eqopt.Lion(1e-3), Cast(), 0.16),
                    # Those which compute slots late, or load one before any shared value.
                    (eqopt.ADOPT(1e-3), BlockwiseQuantized(), 0.23),
                    (eqopt.ADOPT(1e-3), Cast(), 0.26),
                    (eqopt.Adagrad(1e-3), BlockwiseQuantized(), 0.13),
                    (eqopt.Adan(1e-3), BlockwiseQuantized(), 0.33),
                    (eqopt.MARS(1e-3), BlockwiseQuantized(), 0.23),
                    (eqopt.Rprop(1e-3), BlockwiseQuantized(), 0.23),
                    (eqopt.ScheduleFreeAdamW(1e-3), BlockwiseQuantized(), 0.31),
                    (eqopt.GPA(ADAMW), BlockwiseQuantized(), 0.33),
                    # What is loaded for a sum, of one leaf at a time.
                    (eqopt.DoG(), BlockwiseQuantized(), 0.21 + AT_ONCE),
                    (eqopt.DoWG(), BlockwiseQuantized(), 0.21 + AT_ONCE),
                    (eqopt.DAdaptAdamW(), BlockwiseQuantized(), 0.33 + AT_ONCE),
                    (eqopt.Prodigy(), BlockwiseQuantized(), 0.33 + AT_ONCE),
                    # New values of four slots, of one leaf at a time.
                    (eqopt.COCOB(), BlockwiseQuantized(), 0.43),
                ],
            ),
        ]
        for case in cases
    ],
)
@pytest.mark.slow
def test_temporary_memory_of_state(inner, storage, most):
    opt = eqopt.StoreState(inner, storage)
    assert temporary(opt, shape=(1024, 1024)) < most


@SLOW
@pytest.mark.parametrize(
    "storage", [BlockwiseQuantized(), BlockwiseQuantized(4), Float8()], ids=repr
)
def test_temporary_memory_of_tails(storage):
    """Blocks that do not fill the array take no more."""
    assert temporary(eqopt.StoreState(ADAMW, storage), shape=(1000, 1000)) < 0.23


@SLOW
@pytest.mark.parametrize(
    "storage",
    [
        SplitMasterWeights(),
        SplitMasterWeights(8),
        KahanSummation(),
        StochasticRounding(),
        MasterWeights(),
    ],
    ids=repr,
)
def test_temporary_memory_of_parameters(storage):
    """Three float32 numbers per element of one leaf, for any number of leaves."""
    opt = eqopt.StoreParams(ADAMW, storage)
    for leaves in (10, 20):
        assert temporary(opt, jnp.bfloat16, leaves=leaves) < 6.02 / leaves


@SLOW
@pytest.mark.parametrize(
    "inner",
    [
        eqopt.ScheduleFreeAdamW(1e-3, weight_decay=0.1),
        eqopt.EMANesterov(ADAMW),
        eqopt.GPA(eqopt.AdamW(1e-3, weight_decay=0.1), sees="y"),
    ],
    ids=lambda inner: type(inner).__name__,
)
def test_temporary_memory_of_parameters_stored_after_slots(inner):
    """Both parts of a parameter come from one evaluation."""
    opt = eqopt.StoreParams(inner, SplitMasterWeights())
    assert temporary(opt, jnp.bfloat16) < 0.91


@SLOW
def test_temporary_memory_of_both():
    state = lambda inner: eqopt.StoreState(inner, BlockwiseQuantized())
    params = lambda inner: eqopt.StoreParams(inner, SplitMasterWeights())
    shape = 1024, 1024
    found = [
        temporary(opt, jnp.bfloat16, shape)
        for opt in (state(params(ADAMW)), params(state(ADAMW)))
    ]
    # Four numbers in float32, of a leaf that takes two bytes a number in the model.
    assert max(found) < 0.81
